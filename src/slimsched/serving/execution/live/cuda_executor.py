"""Runs batches on a CUDA device, with a graph per key and batch bucket; instances run in parallel."""

import os
from collections.abc import Sequence
from threading import Condition, Lock, local

import torch

from slimsched.core.config import SlimError
from slimsched.models.elastic import Tensors
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Key
from slimsched.serving.execution.live.batch_bucket import BUCKETS, buckets_up_to
from slimsched.serving.execution.live.cuda_chain import CudaChain
from slimsched.serving.execution.live.cuda_slot import CudaSlot
from slimsched.serving.execution.live.cuda_streams import CudaStreams
from slimsched.serving.execution.live.hosted_model import HostedModel


def cuda_device(gpu: int = 0) -> torch.device:
    """Prepare a CUDA device for a server; if there is none, the error says what to do."""
    if not torch.cuda.is_available():
        raise SlimError("no CUDA device is visible; use host kind 'cpu', or see what nvidia-smi says")
    torch.set_num_threads(1)  # copies to pinned memory are too small to share out
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":1024:1")  # 1 MB; else 36 for a small classifier
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    return device


class CudaExecutor:
    """Keeps weights in memory once; each instance is a slot with its own stream, buffers and graphs.

    Loading copies the weights from the host, unless another instance holds them, and captures a graph for
    every key and bucket that the instance can run, so a change of choice never waits for a capture. Unloading
    frees graphs and buffers, and the weights that no other instance can run. Any thread may call `run`: it
    takes the narrowest free slot that fits, and returns when the device is done.
    """

    def __init__(
        self,
        models: Sequence[HostedModel],
        *,
        batch_limit: int = BUCKETS[-1],
        buckets: tuple[int, ...] | None = None,
        lanes: int = 4,
    ) -> None:
        self.lanes = lanes
        self.device = models[0].device
        self._models = {model.served.number: model for model in models}
        self._buckets = buckets or buckets_up_to(batch_limit)
        self._slots: dict[int, tuple[CudaSlot, int]] = {}
        self._streams = CudaStreams(self._new_stream)
        self._free: dict[tuple[int, int], list[CudaSlot]] = {
            (model.served.number, segment): [] for model in models for segment in range(model.served.segments)
        }
        self._freed = Condition(Lock())
        self._loading = Lock()
        for model in models:
            for key in model.served.keys.values():
                _rehearse(model, key, 1)
            model.off_load(self._is_wanted)
        self._rehearsed: set[tuple[int, int]] = set()
        self._thread = local()

    def host(self, model: HostedModel) -> None:
        """Try every key of a model with one example, then take it."""
        with self._loading:
            model.rehearse()
            model.off_load(self._is_wanted)
        with self._freed:
            for segment in range(model.served.segments):
                self._free[model.served.number, segment] = []
        self._models[model.served.number] = model

    def release(self, model: int) -> None:
        """Let a model and its weights go."""
        self._models.pop(model, None)
        with self._loading:
            torch.cuda.empty_cache()

    def load(self, instance: Instance) -> int:
        """Bring its weights, capture its graphs; return the bytes of weights, buffers and memory pool."""
        model, home = self._models[instance.model], (instance.model, instance.segment)
        keys = list(model.served.keys.values())
        with self._loading:
            self._rehearse(model, home)
            weights = model.weight_bytes()
            for key in keys:
                if _fits(instance, key, nested=model.spec.nested):
                    model.segment(key)
            weights = model.weight_bytes() - weights
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(self.device)
            slot = self._slot(model, instance)
            size = torch.cuda.memory_reserved(self.device) - before
            with self._freed:
                self._slots[instance.id] = (slot, size)
                self._free[home].append(slot)
                self._freed.notify_all()
        return size + weights

    def _rehearse(self, model: HostedModel, home: tuple[int, int]) -> None:
        """Run every key of a segment at every size once; of the model's first and last once per thread."""
        keys = list(model.served.keys.values())
        if home not in self._rehearsed:
            for key in keys:
                for bucket in self._buckets if key.segment == home[1] else ():
                    _rehearse(model, key, bucket)
            self._rehearsed.add(home)
        known: set[int] = vars(self._thread).setdefault("models", set())
        if home[0] not in known:  # libraries set themselves up once in each thread
            known.add(home[0])
            for key in (keys[0], keys[-1]):
                _rehearse(model, key, 1)
        model.off_load(self._is_wanted)

    def unload(self, instance: int) -> None:
        """Free the instance's graphs, buffers and weights, and return the memory to the driver."""
        with self._freed:
            slot, _ = self._slots.pop(instance)
            self._freed.wait_for(lambda: slot in self._free[slot.home])
            self._free[slot.home].remove(slot)
        with self._loading:
            slot.close()
            for other, _ in list(self._slots.values()):
                other.forget_chains()
            self._streams.give_back(slot.stream)
            if (model := self._models.get(slot.home[0])) is not None:
                model.off_load(self._is_wanted)
            torch.cuda.empty_cache()

    def _slot(self, model: HostedModel, instance: Instance) -> CudaSlot:
        stream = self._streams.take()
        try:
            return CudaSlot(model, instance, self._buckets, stream)
        except BaseException:
            self._streams.give_back(stream)
            raise

    def _new_stream(self, priority: int) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device, priority)  # type: ignore[no-untyped-call]

    def _is_wanted(self, key: Key) -> bool:
        """Whether a loaded instance can run this key."""
        return any(slot.fits(key) for slot, _ in list(self._slots.values()))

    def example(self, key: Key, rows: int) -> Tensors:
        """Make random inputs for a key: raw inputs on the host, activations on the device."""
        return self._models[key.model].example(key, rows)

    def ends(self, key: Key) -> bool:
        """Whether a key completes a plan."""
        return self._models[key.model].ends(key)

    def is_confident(self, model: int) -> bool:
        """Whether complete plans of a model give one more tensor: how sure each answer is."""
        return self._models[model].is_confident

    def element_bytes(self, model: int) -> int:
        """Bytes per number in a model's activations."""
        return self._models[model].element_bytes

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        """Run one segment on a free slot, in parts if the rows exceed the largest bucket."""
        largest = self._buckets[-1]
        if len(inputs[0]) <= largest:
            return self.launch((key,), [inputs]).wait()[-1]
        parts = zip(*(torch.split(tensor, largest) for tensor in inputs), strict=True)
        outputs = [self.run(key, part) for part in parts]
        return tuple(torch.cat(tensors) for tensors in zip(*outputs, strict=True))

    def launch(
        self,
        legs: Sequence[Key],
        pieces: Sequence[Tensors],
        instances: Sequence[int] = (),
        *,
        keep: bool = False,
    ) -> CudaChain:
        """Start segments one after the other on these instances' slots, or on any free ones.

        The slots are taken until `wait`. With `keep`, what each segment gave is part of the result.
        """
        slots: list[CudaSlot] = []
        try:
            for at, key in enumerate(legs):
                slots.append(self._claim(key, instances[at] if instances else None))
            return CudaChain(legs, slots, pieces, self._give_back, ends=self.ends(legs[-1]), keep=keep)
        except BaseException:
            self._give_back(slots)
            raise

    def prepare_plans(self) -> None:
        """Capture one graph for each plan with one choice everywhere that loaded instances can run."""
        for number, (first, _) in list(self._slots.items()):
            model = self._models[first.home[0]]
            rows = [tuple(model.served.legs(plan)) for plan in model.spec.plans if len(set(plan)) == 1]
            rows = [legs for legs in rows if first.fits(legs[0]) and all(map(self._is_wanted, legs))]
            for legs in rows:
                self._prepare(legs, number)

    def _prepare(self, legs: tuple[Key, ...], instance: int) -> None:
        slot = self._claim(legs[0], instance)
        try:
            with torch.cuda.stream(slot.stream):
                for bucket in reversed(self._buckets if len(legs) > 1 else ()):
                    slot.chained(legs, bucket, at_once=True)
            slot.stream.synchronize()
        finally:
            self._give_back([slot])

    def memory_bytes(self) -> int:
        """Bytes of weights, buffers and pools of loaded instances, without waiting activations."""
        return sum(size for _, size in self._slots.values()) + self.weight_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device."""
        return sum(model.weight_bytes() for model in list(self._models.values()))

    def _give_back(self, slots: Sequence[CudaSlot]) -> None:
        """Free slots for other batches."""
        with self._freed:
            for slot in slots:
                self._free[slot.home].append(slot)
            self._freed.notify_all()

    def _claim(self, key: Key, instance: int | None) -> CudaSlot:
        """Wait for this instance's slot, or for the narrowest free slot that can run this key.

        A thread that launches several batches must name instances: while it waits here it cannot free a slot.
        """
        with self._freed:
            while True:
                free, best = self._free[key.model, key.segment], None
                own = self._slots[instance][0] if instance in self._slots else None
                for slot in free:
                    if slot.fits(key) and (best is None or slot.choice < best.choice or slot is own):
                        best = slot
                        if slot is own:
                            break
                if best is not None:
                    free.remove(best)
                    return best
                loaded = (slot for slot, _ in self._slots.values())
                if not any(slot.fits(key) for slot in loaded):
                    raise SlimError(f"no instance that can run {key} is loaded; load one first")
                self._freed.wait()


def _fits(instance: Instance, key: Key, *, nested: bool) -> bool:
    """Whether an instance can run a key of its model."""
    if key.segment != instance.segment:
        return False
    return key.choice == instance.choice or (nested and key.choice < instance.choice)


@torch.no_grad()
def _rehearse(model: HostedModel, key: Key, bucket: int) -> None:
    """Run once without a graph: kernels are compiled and convolution plans chosen before any capture."""
    model.segment(key)(tuple(tensor.to(model.device) for tensor in model.example(key, bucket)))
