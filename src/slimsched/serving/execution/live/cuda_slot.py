"""One instance on a CUDA device: a stream of its own, its buffers, and a graph per key and batch bucket."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.core.config import DataError
from slimsched.models.elastic import Segment, Tensors
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Key
from slimsched.serving.execution.live.batch_bucket import bucket_for
from slimsched.serving.execution.live.hosted_model import HostedModel
from slimsched.serving.execution.live.input_arena import LEAST_BYTES

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
        self,
        model: HostedModel,
        instance: Instance,
        buckets: tuple[int, ...],
        stream: torch.cuda.Stream,
    ) -> None:
        self.home, self.choice = (instance.model, instance.segment), instance.choice
        self._model, self._buckets = model, buckets
        self._nested = model.spec.nested
        self.keys = [key for key in model.served.keys.values() if self.fits(key)]
        self.stream = stream
        self.began, self.done = _timed_event(), _timed_event()
        """Before the first segment of a batch, and after the one that this slot runs."""
        self._pool = torch.cuda.graph_pool_handle()
        self._is_first = instance.segment == 0
        sizes = self._input_sizes()
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
        if (key.model, key.segment) != self.home:
            return False
        return key.choice == self.choice or (self._nested and key.choice < self.choice)

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

    def _input_sizes(self) -> list[int]:
        """Largest size in bytes of each input, over the keys of this slot, at the largest bucket."""
        rows = [[layout.row_bytes for layout in self._model.layouts(key)] for key in self.keys]
        return [self._buckets[-1] * max(sizes) for sizes in zip(*rows, strict=True)]

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
    """Whether the device can copy this tensor by itself."""
    return tensor.is_cuda or (tensor.nbytes >= LEAST_BYTES and tensor.is_pinned())


class _Window:
    """A view of device memory through the CUDA array interface."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": (tensor.numel() * tensor.element_size(),),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _window(tensor: Tensor) -> Tensor:
    """Return the same memory without owning it, so that the pool can reuse it for the next graph."""
    flat = torch.as_tensor(_Window(tensor), device=tensor.device).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())
