"""Batches on a CUDA device: bf16, channels_last, graphs by key and batch bucket, instances side by side."""

import os
from threading import Condition, Lock

import torch
from torch import Tensor

from slimsched.kernel.errors import SlimError
from slimsched.models.slimresnet.weights import TrainedModel
from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.execution.live.batch_bucket import BUCKETS, buckets_up_to
from slimsched.serving.execution.live.cuda_slot import CudaSlot
from slimsched.serving.execution.live.resident_segments import ResidentSegments


class CudaExecutor:
    """Weights are resident once; an instance is a slot with a stream, buffers and graphs of its own.

    Loading captures a graph for every key and bucket the instance can run, so that no width switch ever
    waits for one. Unloading gives graphs and buffers back to the driver. Any thread may call `run`: it takes
    the narrowest free slot that fits, and returns when the device is done.
    """

    element_bytes = 2

    def __init__(
        self,
        model: TrainedModel,
        *,
        gpu: int = 0,
        batch_limit: int = BUCKETS[-1],
        buckets: tuple[int, ...] | None = None,
        lanes: int = 4,
    ) -> None:
        if not torch.cuda.is_available():
            raise SlimError("no CUDA device is visible; use host kind 'cpu', or see what nvidia-smi says")
        torch.set_num_threads(1)  # copies to pinned memory are too small to share out
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":1024:1")  # 1 MB; else 36 for a small classifier
        self.lanes = lanes
        self.device = torch.device("cuda", gpu)
        torch.cuda.set_device(self.device)
        self._buckets = buckets or buckets_up_to(batch_limit)
        self._segments = ResidentSegments(model, self.device, torch.bfloat16)
        self._slots: dict[int, tuple[CudaSlot, int]] = {}
        self._free: dict[int, list[CudaSlot]] = {segment: [] for segment in range(SEGMENTS)}
        self._freed = Condition(Lock())
        self._loading = Lock()
        for key in KEYS.values():
            self._rehearse(key, 1)
        self._rehearsed: set[int] = set()

    def load(self, instance: Instance) -> int:
        """Capture the instance's graphs; return the bytes its buffers and their pool hold."""
        with self._loading:
            if instance.segment not in self._rehearsed:
                for key in KEYS.values():
                    for bucket in self._buckets if key.segment == instance.segment else ():
                        self._rehearse(key, bucket)
                self._rehearsed.add(instance.segment)
            self._rehearse(KEYS[0, 0.25, None], 1)  # libraries set themselves up once in each thread
            self._rehearse(KEYS[3, 0.25, 0.25], 1)
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(self.device)
            slot = CudaSlot(self._segments, instance, self._buckets)
            size = torch.cuda.memory_reserved(self.device) - before
            with self._freed:
                self._slots[instance.id] = (slot, size)
                self._free[slot.segment].append(slot)
                self._freed.notify_all()
        return size

    def unload(self, instance: int) -> None:
        """Free the instance's graphs and buffers, and hand the memory back to the driver."""
        with self._freed:
            slot, _ = self._slots.pop(instance)
            self._freed.wait_for(lambda: slot in self._free[slot.segment])
            self._free[slot.segment].remove(slot)
        with self._loading:
            slot.close()
            torch.cuda.empty_cache()

    def activation(self, shape: tuple[int, ...]) -> Tensor:
        """Random, as after a ReLU, channels_last."""
        rows = torch.rand(shape, device=self.device, dtype=torch.bfloat16)
        return rows.contiguous(memory_format=torch.channels_last)

    def inputs(self, images: Tensor) -> Tensor:
        """As they are: the first segment's graph normalizes on the device."""
        return images

    def run(self, key: Key, inputs: Tensor) -> Tensor:
        """Run one segment on a free slot; more images than the largest bucket holds run in parts."""
        largest = self._buckets[-1]
        if len(inputs) > largest:
            return torch.cat([self.run(key, part) for part in torch.split(inputs, largest)])
        return self.launch(key, inputs).wait()

    def launch(self, key: Key, inputs: Tensor, instance: int | None = None) -> "Launched":
        """Begin one segment on the instance's slot, if it is free, and return at once; taken until `wait`."""
        slot = self._claim(key, instance)
        try:
            return Launched(self, slot, inputs, slot.launch(key, inputs))
        except BaseException:
            self._give_back(slot)
            raise

    def memory_bytes(self) -> int:
        """Bytes that buffers and pools of loaded instances hold; weights and waiting activations apart."""
        return sum(size for _, size in self._slots.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the resident weights."""
        return self._segments.weight_bytes

    def _claim(self, key: Key, instance: int | None) -> CudaSlot:
        """The slot of this instance, or the narrowest free one that can run this key; waits for it.

        Who launches several batches from one thread must name instances: it cannot give back while it waits.
        """
        with self._freed:
            while True:
                free, best = self._free[key.segment], None
                own = self._slots[instance][0] if instance in self._slots else None
                for slot in free:
                    if slot.width >= key.width and (best is None or slot.width < best.width or slot is own):
                        best = slot
                        if slot is own:
                            break
                if best is not None:
                    free.remove(best)
                    return best
                loaded = (slot for slot, _ in self._slots.values())
                if not any(s.segment == key.segment and s.width >= key.width for s in loaded):
                    raise SlimError(f"no instance that can run {key} is loaded; load one first")
                self._freed.wait()

    def _give_back(self, slot: CudaSlot) -> None:
        with self._freed:
            self._free[slot.segment].append(slot)
            self._freed.notify()

    @torch.no_grad()
    def _rehearse(self, key: Key, bucket: int) -> None:
        """Run once without a graph: kernels are compiled and convolution plans chosen before any capture."""
        shape = (bucket, *self._segments.input_shape(key))
        if key.segment == 0:
            inputs = torch.zeros(shape, device=self.device, dtype=torch.uint8)
        else:
            inputs = self.activation(shape)
        self._segments(key, inputs)


class Launched:
    """A segment under way on a slot; holds the inputs until they are read."""

    __slots__ = ("_executor", "_inputs", "_rows", "_slot")

    def __init__(self, executor: CudaExecutor, slot: CudaSlot, inputs: Tensor, rows: Tensor) -> None:
        self._executor, self._slot, self._inputs, self._rows = executor, slot, inputs, rows

    def ready(self) -> bool:
        """Whether the device is done."""
        return self._slot.ready()

    def wait(self) -> Tensor:
        """The result, once the device is done; the slot is free again."""
        try:
            self._slot.wait()
            return self._rows.clone() if self._slot.is_last else self._rows
        finally:
            self._executor._give_back(self._slot)
