"""Batches on a CPU: packed segments in channels_last, a fixed number of threads."""

from threading import Lock
from time import sleep, thread_time

import torch
from torch import Tensor

from slimsched.models.slimresnet.instance import SegmentInstance, fold
from slimsched.models.slimresnet.packed import cpu_precision, pack
from slimsched.models.slimresnet.weights import TrainedModel
from slimsched.models.width import WIDTHS
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS, Key


class CpuExecutor:
    """One lane on a share of the cores; with `speed` below 1 it rests after each batch.

    The network's weights are resident once. An instance adds the folded weights of its own width, for every
    previous width; narrower widths that it runs by slicing are folded when first asked for. Folded weights
    are shared by the instances of a segment and freed with the last one that uses them.
    """

    lanes = 1

    def __init__(
        self,
        model: TrainedModel,
        *,
        threads: int = 1,
        speed: float = 1.0,
        precision: torch.dtype | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self._precision = precision or cpu_precision()
        self.element_bytes = self._precision.itemsize
        self._net = model.net
        self._rest = 1.0 / speed - 1.0
        colours = model.card.colours
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (colours.mean, colours.std))
        self._scale, self._shift = 1.0 / (255.0 * std), -mean / std
        self._folded: dict[Key, SegmentInstance] = {}
        self._users: dict[int, Instance] = {}
        self._lock = Lock()

    def load(self, instance: Instance) -> int:
        """Fold the instance's own width for all previous widths."""
        before = self.memory_bytes()
        with self._lock:
            self._users[instance.id] = instance
        for previous in WIDTHS if instance.segment else (None,):
            self._get(KEYS[instance.segment, instance.width, previous])
        return self.memory_bytes() - before

    def unload(self, instance: int) -> None:
        """Free every folded segment that no loaded instance could run any more."""
        with self._lock:
            self._users.pop(instance)
            widest: dict[int, float] = {}
            for user in self._users.values():
                widest[user.segment] = max(widest.get(user.segment, 0.0), user.width)
            kept = {k: f for k, f in self._folded.items() if k.width <= widest.get(k.segment, 0.0)}
            self._folded = kept

    def activation(self, shape: tuple[int, ...]) -> Tensor:
        """Random, as after a ReLU, channels_last."""
        return torch.rand(shape).to(self._precision).contiguous(memory_format=torch.channels_last)

    def inputs(self, images: Tensor) -> Tensor:
        """uint8 (N, 3, side, side) -> normalized, channels_last."""
        normal = torch.addcmul(self._shift, images.to(torch.float32), self._scale)
        return normal.to(self._precision).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def run(self, key: Key, inputs: Tensor) -> Tensor:
        """Run one segment, and rest if this server is a slow one."""
        folded = self._get(key)
        began_s = thread_time()
        out: Tensor = folded(inputs)
        if self._rest > 0.0:
            sleep(self._rest * (thread_time() - began_s))  # for its own work, not for others' on its core
        return out

    def memory_bytes(self) -> int:
        """Bytes of folded weights."""
        return sum(folded.weight_bytes for folded in self._folded.values())

    def _get(self, key: Key) -> SegmentInstance:
        folded = self._folded.get(key)
        if folded is None:
            with self._lock:
                plain = fold(self._net, key.segment, width=key.width, previous=key.previous)
                folded = self._folded[key] = pack(plain, self._precision)
        return folded
