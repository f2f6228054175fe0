"""Runs batches on a CUDA device, with a graph per key and batch bucket; instances run in parallel.

An instance has a slot: a stream of its own, its buffers and its graphs. A chain launches several segments at
once. Servers that share a GPU hand activations over by handle; inputs are pinned.
"""

import ctypes
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Condition, Lock, local
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from torch.storage import TypedStorage

from slimsched.core.config import DataError, SlimError
from slimsched.models.elastic import Segment, Tensors
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Key
from slimsched.serving.live.executor import Executor, HostedModel, fits
from slimsched.serving.live.memory import LEAST_BYTES, SLAB_BYTES, ArenaReader
from slimsched.serving.live.peers import UnixPeers
from slimsched.serving.live.wire import SharedTensor

# -- CUDA streams of which each belongs to one slot at a time.
#
# PyTorch keeps 32 streams and hands them out in turn, so the 33rd is the first one again. Two slots on one
# stream would wait for each other, and a graph that one of them captures would contain the other's work.

PER_PRIORITY = 32
"""How many streams PyTorch has of each priority."""


class CudaStreams:
    """Lends streams; `make(priority)` returns one that may be in use already.

    Two streams with the same `cuda_stream`, the handle of the driver, are the same stream.
    """

    def __init__(self, make: Callable[[int], torch.cuda.Stream]) -> None:
        self._make = make
        self._free: list[torch.cuda.Stream] = []
        self._in_use: set[int] = set()
        self._lock = Lock()

    def take(self) -> torch.cuda.Stream:
        """Return a stream that no other slot has; ordinary ones first, then those of high priority."""
        with self._lock:
            if self._free:
                return self._lend(self._free.pop())
            for priority in (0, -1):
                for _ in range(PER_PRIORITY):
                    stream = self._make(priority)
                    if stream.cuda_stream not in self._in_use:
                        return self._lend(stream)
        raise SlimError(
            f"{len(self._in_use)} instances are loaded, and there are no more CUDA streams; "
            "lower instance_limit, or name fewer resident choices"
        )

    def give_back(self, stream: torch.cuda.Stream) -> None:
        """Take a stream back that has nothing left to do."""
        with self._lock:
            self._in_use.discard(stream.cuda_stream)
            self._free.append(stream)

    def _lend(self, stream: torch.cuda.Stream) -> torch.cuda.Stream:
        self._in_use.add(stream.cuda_stream)
        return stream


# -- Batch buckets: the batch sizes that graphs are captured for. A batch is padded to the next bucket.

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def buckets_up_to(batch_limit: int) -> tuple[int, ...]:
    """Return the buckets for batches of at most `batch_limit`; larger batches run in parts."""
    if batch_limit < 1:
        raise SlimError(f"batch_limit is {batch_limit}; give 1 or more")
    return BUCKETS[: min(bisect_left(BUCKETS, batch_limit) + 1, len(BUCKETS))]


def bucket_for(size: int, buckets: tuple[int, ...]) -> int:
    """Return the smallest bucket that holds `size` examples, or the largest bucket if none does."""
    return buckets[min(bisect_left(buckets, size), len(buckets) - 1)]


# -- One instance on a CUDA device: a stream of its own, its buffers, and a graph per key and batch bucket.

OFTEN = 20
"""After this many runs, segments in a row get a graph of their own, which takes about 10 ms."""

MOST_CHAINS = 100
"""How many such graphs a slot has at most."""


class Captured(Struct, frozen=True):
    """A graph with its input and output buffers; without a graph, the segment runs eagerly."""

    graph: Any
    inputs: Tensors
    outputs: Tensors


class CudaSlot:
    """Runs one batch at a time; all its graphs share their input buffers and one memory pool.

    The next graph may overwrite a graph's outputs in the pool, so they are copied out before a run returns. A
    model that cannot be captured as a graph runs without one.

    Several segments in a row that are run often get one graph for all of them, in the slot of the first.
    """

    def __init__(
        self, model: HostedModel, instance: Instance, buckets: tuple[int, ...], stream: torch.cuda.Stream
    ) -> None:
        self.home, self.choice = (instance.model, instance.segment), instance.choice
        self._model, self._buckets = model, buckets
        self._instance = instance
        self.keys = [key for key in model.served.keys.values() if self.fits(key)]
        self.stream = stream
        self.began, self.done = _timed_event(), _timed_event()
        """Before the first segment of a batch, and after the one that this slot runs."""
        self._pool = torch.cuda.graph_pool_handle()
        self._is_first = instance.segment == 0
        rows = [[layout.row_bytes for layout in model.layouts(key)] for key in self.keys]
        sizes = [buckets[-1] * max(one) for one in zip(*rows, strict=True)]
        self._buffers = [torch.empty(size, device=model.device, dtype=torch.uint8) for size in sizes]
        self._staging = [
            torch.empty(size, dtype=torch.uint8, pin_memory=True)
            for size in (sizes if self._is_first else ())
        ]
        self._host: dict[Key, Tensors] = {}
        self._graphs: dict[tuple[Key, int], Captured] = {}
        self._chains: dict[tuple[tuple[Key, ...], int], Captured] = {}
        self._used: Counter[tuple[tuple[Key, ...], int]] = Counter()
        with torch.cuda.stream(self.stream), torch.no_grad():
            for bucket in reversed(buckets):
                for key in self.keys:
                    self._graphs[key, bucket] = self._capture_key(key, bucket)
            for captured in self._graphs.values():
                if captured.graph is not None:
                    captured.graph.replay()  # the first replay of a graph uploads it
        self.stream.synchronize()

    def fits(self, key: Key) -> bool:
        """Whether this slot can run a key."""
        return fits(self._instance, key, nested=self._model.spec.nested)

    def copy_in(self, key: Key, pieces: Sequence[Tensors]) -> int:
        """Copy rows into the inputs of a key, on the current stream; return the bucket that holds them."""
        size, first = sum([piece[0].shape[0] for piece in pieces]), pieces[0][0]
        bucket = bucket_for(size, self._buckets)
        inputs = self._graphs[key, bucket].inputs
        if first.shape[1:] != inputs[0].shape[1:] or size > self._buckets[-1]:
            wanted = ", ".join(str(one) for one in inputs[0].shape[1:])
            raise DataError(
                f"{key} was given {size} rows of shape {tuple(first.shape[1:])}; it takes (N, {wanted}) with "
                f"N ≤ {self._buckets[-1]}"
            )
        for place, target in enumerate(inputs):
            self._copy_in(target, place, [piece[place] for piece in pieces])
        return bucket

    @torch.no_grad()
    def chained(self, legs: tuple[Key, ...], bucket: int, *, at_once: bool = False) -> Captured | None:
        """Return the graph of segments in a row that begin here, if they were run often, or `at_once`."""
        found = self._chains.get((legs, bucket))
        if found is None:
            if len(self._chains) >= MOST_CHAINS:
                return None
            self._used[legs, bucket] += 1
            if self._used[legs, bucket] < OFTEN and not at_once:
                return None
            found = self._chains[legs, bucket] = self._capture(legs, self._graphs[legs[0], bucket].inputs)
        return None if found.graph is None else found

    def forget_chains(self) -> None:
        """Weights of other segments may move: capture anew. A batch that runs keeps its graph."""
        self._chains, self._used = {}, Counter()

    def take_over(self, key: Key, bucket: int, rows: Tensors) -> None:
        """Copy what the segment before gave, a whole bucket, into the inputs of a key."""
        for target, given in zip(self._graphs[key, bucket].inputs, rows, strict=True):
            target.copy_(given, non_blocking=True)

    @torch.no_grad()
    def forward(self, key: Key, bucket: int) -> Tensors:
        """Run a key on its inputs, on the current stream; the next run of this slot overwrites the result."""
        captured = self._graphs[key, bucket]
        if captured.graph is None:
            return self._model.segment(key)(captured.inputs)
        captured.graph.replay()
        return captured.outputs

    def to_host(self, key: Key, rows: Tensors, size: int) -> Tensors:
        """Copy the outputs of a complete plan to host buffers of the slot, which the next run overwrites."""
        hosts = tuple([host[:size] for host in self._host[key]])
        for host, row in zip(hosts, rows, strict=True):
            host.copy_(row[:size], non_blocking=True)
        return hosts

    def close(self) -> None:
        """Free the graphs and buffers."""
        self.stream.synchronize()
        for captured in (*self._graphs.values(), *self._chains.values()):
            if captured.graph is not None:
                captured.graph.reset()
        self._graphs.clear()
        self.forget_chains()
        self._host.clear()
        torch._C._cuda_clearCublasWorkspaces()  # a classifier's, which lies in the pool
        del self._buffers, self._staging

    def _copy_in(self, target: Tensor, place: int, tensors: Sequence[Tensor]) -> None:
        """Copy the pieces of one input, one after the other; those from the host by way of pinned memory."""
        staged = self._is_first and not all(map(_is_reachable, tensors))
        into = (
            self._staging[place][: target.nbytes].view(target.dtype).view(target.shape) if staged else target
        )
        at = 0
        for tensor in tensors:
            into[at : at + tensor.shape[0]].copy_(tensor, non_blocking=not staged and self._is_first)
            at += tensor.shape[0]
        if staged:
            target[:at].copy_(into[:at], non_blocking=True)

    def _capture_key(self, key: Key, bucket: int) -> Captured:
        """Capture a graph of one key at one batch size; no graph if the model's code does not allow it."""
        inputs = tuple(
            layout.view(buffer, bucket)
            for layout, buffer in zip(self._model.layouts(key), self._buffers, strict=True)
        )
        for tensor in inputs:
            tensor.zero_()
        captured = self._capture((key,), inputs)
        if self._model.ends(key) and key not in self._host:
            self._host[key] = tuple(
                torch.empty((self._buckets[-1], *one.shape[1:]), dtype=one.dtype, pin_memory=True)
                for one in captured.outputs
            )
        return captured

    def _capture(self, legs: Sequence[Key], inputs: Tensors) -> Captured:
        """Capture a graph of segments in a row, on the current stream; no graph if that fails."""
        segments = [self._model.segment(key) for key in legs]
        graph: Any = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = _run(segments, inputs)
            finally:
                graph.capture_end()
            return Captured(graph, inputs, tuple(_window(tensor) for tensor in outputs))
        except RuntimeError:
            return Captured(None, inputs, _run(segments, inputs))


def _run(segments: Sequence[Segment], rows: Tensors) -> Tensors:
    for segment in segments:
        rows = segment(rows)
    return rows


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _is_reachable(tensor: Tensor) -> bool:
    return tensor.is_cuda or (tensor.nbytes >= LEAST_BYTES and tensor.is_pinned())


def _window(tensor: Tensor) -> Tensor:
    """Return the same memory without owning it, so that the pool can reuse it for the next graph."""
    shown = {"shape": (tensor.nbytes,), "typestr": "|u1", "data": (tensor.data_ptr(), False), "version": 3}
    window = SimpleNamespace(__cuda_array_interface__=shown)
    flat = torch.as_tensor(window, device=tensor.device).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


# -- A batch on a CUDA device that runs one or several segments, launched at once.
#
# The host starts all segments one after the other on one stream and does not wait in between, so the device
# never waits for the host. Each segment runs in the slot of its own instance. Segments that are run often in
# this row have one graph together, in the first slot; then the others only stay free for this batch.


class CudaChain:
    """Segments that are running; keeps the inputs alive until they are read."""

    __slots__ = ("_ends", "_give_back", "_passed", "_pieces", "_slots", "_whole", "legs_s")

    def __init__(
        self,
        legs: Sequence[Key],
        slots: Sequence[CudaSlot],
        pieces: Sequence[Tensors],
        give_back: Callable[[Sequence[CudaSlot]], None],
        *,
        ends: bool,
        keep: bool,
    ) -> None:
        """Launch everything. The last segment `ends` a plan, or its result stays on the device."""
        self._slots, self._pieces, self._give_back, self._ends = slots, pieces, give_back, ends
        self._passed: list[Tensors] = []
        self._whole: Captured | None = None
        self.legs_s: tuple[float, ...] = ()
        """How long each segment took; empty where they had one graph."""
        stream = slots[0].stream
        before = torch._C._cuda_getCurrentStream(stream.device_index)  # torch.cuda's own calls take longer
        torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
        try:
            self._launch(legs, sum([piece[0].shape[0] for piece in pieces]), keep=keep)
        except BaseException:
            stream.synchronize()  # so that others can have the slots
            raise
        finally:
            torch._C._cuda_setStream(*before)

    def _launch(self, legs: Sequence[Key], size: int, *, keep: bool) -> None:
        slots, stream = self._slots, self._slots[0].stream
        bucket, last = slots[0].copy_in(legs[0], self._pieces), len(legs) - 1
        self._whole = slots[0].chained(tuple(legs), bucket) if last and not keep else None
        if self._whole is not None:
            self._whole.graph.replay()
            self._end(legs[-1], self._whole.outputs, size)
            slots[-1].done.record(stream)
            return
        slots[0].began.record(stream)
        for at, (key, slot) in enumerate(zip(legs, slots, strict=True)):
            rows = slot.forward(key, bucket)
            if at < last:
                slots[at + 1].take_over(legs[at + 1], bucket, rows)
            if at == last:
                self._end(key, rows, size)
            elif keep:
                self._passed.append(tuple([one[:size].clone() for one in rows]))
            slot.done.record(stream)

    def _end(self, key: Key, rows: Tensors, size: int) -> None:
        """Copy the last result to where the next batch does not overwrite it, on the host if a plan ends."""
        if self._ends:
            self._passed.append(self._slots[-1].to_host(key, rows, size))
        else:
            self._passed.append(tuple([one[:size].clone() for one in rows]))

    def ready(self) -> bool:
        """Whether the device is done."""
        done: bool = self._slots[-1].done.query()  # type: ignore[no-untyped-call]
        return done

    def wait(self) -> list[Tensors]:
        """Wait for the device, free the slots and return the result of the last segment.

        With `keep`, the results of the segments before stand before it.
        """
        try:
            self._slots[-1].done.synchronize()
            if len(self._slots) > 1 and self._whole is None:
                ends = [slot.done for slot in self._slots]
                begins = [self._slots[0].began, *ends[:-1]]
                times_ms = [begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)]
                self.legs_s = tuple([1e-3 * time_ms for time_ms in times_ms])
            if self._ends:
                self._passed[-1] = tuple([rows.clone() for rows in self._passed[-1]])
            return self._passed
        finally:
            self._give_back(self._slots)


# -- The input arena as a CUDA server sees it: pinned, so that the GPU copies inputs without the host's help.


class PinnedArena(ArenaReader):
    """Pins each slab when something in it is first read. What cannot be pinned is read all the same."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen: set[int] = set()
        if self.memory is not None:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes that the gateway wrote, in pinned memory."""
        view, slab = super().view(offset, size), offset // SLAB_BYTES
        if slab not in self._seen:
            self._seen.add(slab)
            torch.cuda.cudart().cudaHostRegister(self._address + slab * SLAB_BYTES, SLAB_BYTES, 0)  # type: ignore[no-untyped-call]
        return view


# -- Moves activations between processes that share a GPU: the data stays there, only a handle is sent.


class CudaPeers(UnixPeers):
    """Uses CUDA IPC, and shared host memory for tensors that CUDA cannot share."""

    def __init__(self, shared_prefix: str, secret: str, device: torch.device) -> None:
        super().__init__(shared_prefix, secret)
        self._device = device

    def _put(self, tensor: Tensor) -> SharedTensor:
        if not tensor.is_cuda:
            return super()._put(tensor)
        try:
            return SharedTensor(handle=_pack(tensor))
        except RuntimeError:  # the device or its driver does not share memory between processes
            return super()._put(tensor)

    def _take(self, shared: SharedTensor) -> Tensor | None:
        """Copy at once, so that the peer can free its memory and may die later without harm."""
        if not shared.handle:
            rows = super()._take(shared)
            return None if rows is None else rows.to(self._device)
        try:
            rows = _unpack(shared.handle).clone()
        except RuntimeError:
            return None  # the peer died in between
        torch.cuda.current_stream(self._device).synchronize()
        return rows


def _pack(rows: Tensor) -> bytes:
    """Encode what another process needs to map these rows, without pickle."""
    _, facts = reduce_tensor(rows)  # type: ignore[no-untyped-call]
    _, shape, stride, offset, _, dtype, *memory = facts
    kind = str(dtype).removeprefix("torch.")
    return msgspec.msgpack.encode([list(shape), list(stride), offset, kind, *memory])


def _unpack(raw: bytes) -> Tensor:
    shape, stride, offset, dtype, *memory = msgspec.msgpack.decode(raw)
    rows: Tensor = rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
        Tensor, torch.Size(shape), tuple(stride), offset, TypedStorage, getattr(torch, dtype), *memory
    )
    return rows


def cuda_device(gpu: int = 0) -> torch.device:
    """Prepare a CUDA device for a server; if there is none, the error says what to do."""
    if not torch.cuda.is_available():
        raise SlimError("no CUDA device is visible; use host kind 'cpu', or see what nvidia-smi says")
    torch.set_num_threads(1)  # copies to pinned memory are too small to share out
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":1024:1")  # 1 MB; else 36 for a small classifier
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    return device


class CudaExecutor(Executor):
    """Keeps weights in memory once; each instance is a slot with its own stream, buffers and graphs.

    Loading copies the weights from the host, unless another instance holds them, and captures a graph for
    every key and bucket that the instance can run, so a change of choice never waits for a capture. Unloading
    frees graphs and buffers, and the weights that no other instance can run. Any thread may call `run`: it
    takes the narrowest free slot that fits, and returns when the device is done.
    """

    overlaps = True

    def __init__(
        self,
        models: Sequence[HostedModel],
        *,
        batch_limit: int = BUCKETS[-1],
        buckets: tuple[int, ...] | None = None,
        lanes: int = 4,
    ) -> None:
        super().__init__(models)
        self.lanes, self.device = lanes, models[0].device
        self._buckets = buckets or buckets_up_to(batch_limit)
        self._slots: dict[int, CudaSlot] = {}
        self._streams = CudaStreams(partial(torch.cuda.Stream, self.device))
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
        super().release(model)
        with self._loading:
            torch.cuda.empty_cache()

    def load(self, instance: Instance) -> int:
        """Bring its weights, capture its graphs; return the bytes of weights, buffers and memory pool."""
        model, home = self._models[instance.model], (instance.model, instance.segment)
        keys = list(model.served.keys.values())
        with self._loading:
            self._rehearse(model, home, keys)
            weights = model.weight_bytes()
            for key in keys:
                if fits(instance, key, nested=model.spec.nested):
                    model.segment(key)
            weights = model.weight_bytes() - weights
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(self.device)
            stream = self._streams.take()
            try:
                slot = CudaSlot(model, instance, self._buckets, stream)
            except BaseException:
                self._streams.give_back(stream)
                raise
            size = torch.cuda.memory_reserved(self.device) - before
            with self._freed:
                self._slots[instance.id] = slot
                self._free[home].append(slot)
                self._freed.notify_all()
        return size + weights

    def _rehearse(self, model: HostedModel, home: tuple[int, int], keys: Sequence[Key]) -> None:
        """Run every key of a segment at every size once; of the model's first and last once per thread."""
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
            slot = self._slots.pop(instance)
            self._freed.wait_for(lambda: slot in self._free[slot.home])
            self._free[slot.home].remove(slot)
        with self._loading:
            slot.close()
            for other in list(self._slots.values()):
                other.forget_chains()
            self._streams.give_back(slot.stream)
            if (model := self._models.get(slot.home[0])) is not None:
                model.off_load(self._is_wanted)
            torch.cuda.empty_cache()

    def _is_wanted(self, key: Key) -> bool:
        """Whether a loaded instance can run this key."""
        return any(slot.fits(key) for slot in list(self._slots.values()))

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
        for number, first in list(self._slots.items()):
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

    def _give_back(self, slots: Sequence[CudaSlot]) -> None:
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
                own = None if instance is None else self._slots.get(instance)
                for slot in free:
                    if slot.fits(key) and (best is None or slot.choice < best.choice or slot is own):
                        best = slot
                        if slot is own:
                            break
                if best is not None:
                    free.remove(best)
                    return best
                if not self._is_wanted(key):
                    raise SlimError(f"no instance that can run {key} is loaded; load one first")
                self._freed.wait()


@torch.no_grad()
def _rehearse(model: HostedModel, key: Key, bucket: int) -> None:
    """Run once without a graph: kernels are compiled and convolution plans chosen before any capture."""
    model.segment(key)(tuple(tensor.to(model.device) for tensor in model.example(key, bucket)))
