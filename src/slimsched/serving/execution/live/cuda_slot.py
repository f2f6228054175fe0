"""One instance on a CUDA device: a stream, a graph for every key and batch bucket it can run, its buffers."""

from math import prod
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.kernel.errors import DataError
from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.execution.live.batch_bucket import bucket_for
from slimsched.serving.execution.live.resident_segments import ResidentSegments


class _Captured(Struct, frozen=True):
    """A graph, the buffer it reads and the one it writes."""

    graph: Any
    inputs: Tensor
    outputs: Tensor


class CudaSlot:
    """Runs one batch at a time; all its graphs share one input buffer and one memory pool.

    A graph's output lies in the pool, where the next graph may write: it is copied out before a run returns.
    """

    def __init__(self, segments: ResidentSegments, instance: Instance, buckets: tuple[int, ...]) -> None:
        self.segment, self.width = instance.segment, instance.width
        self._segments, self._buckets = segments, buckets
        self.keys = [k for k in KEYS.values() if k.segment == self.segment and k.width <= self.width]
        self.is_last = self.segment == SEGMENTS - 1
        self._stream = torch.cuda.Stream(segments.device)  # type: ignore[no-untyped-call]
        self._place = (self._stream.stream_id, self._stream.device_index, self._stream.device_type)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        dtype = torch.uint8 if self.segment == 0 else segments.dtype
        most = buckets[-1] * max(prod(segments.input_shape(key)) for key in self.keys)
        self._buffer = torch.empty(most, device=segments.device, dtype=dtype)
        self._staging = torch.empty(most, dtype=dtype, pin_memory=True) if self.segment == 0 else None
        self._logits = torch.empty((buckets[-1], segments.shape.classes), pin_memory=self.is_last)
        self._graphs: dict[tuple[Key, int], _Captured] = {}
        with torch.cuda.stream(self._stream), torch.no_grad():
            for bucket in reversed(buckets):
                for key in self.keys:
                    self._graphs[key, bucket] = self._capture(key, bucket)
            for captured in self._graphs.values():
                captured.graph.replay()  # the first replay of a graph uploads it
        self._stream.synchronize()

    def launch(self, key: Key, inputs: Tensor) -> Tensor:
        """Copy in, replay, copy out, all on the slot's stream; the result is there once `wait` returns.

        Logits come to a host buffer of the slot, valid until its next launch.
        """
        size = inputs.shape[0]
        captured = self._graphs[key, bucket_for(size, self._buckets)]
        if inputs.shape[1:] != captured.inputs.shape[1:] or size > self._buckets[-1]:
            wanted = ", ".join(str(one) for one in captured.inputs.shape[1:])
            most = self._buckets[-1]
            raise DataError(
                f"{key} was given shape {tuple(inputs.shape)}; it takes (N, {wanted}) with N ≤ {most}"
            )
        before = torch._C._cuda_getCurrentStream(
            self._place[1]
        )  # torch.cuda's own calls take five times as long
        torch._C._cuda_setStream(*self._place)
        try:
            self._copy_in(captured, inputs, size)
            captured.graph.replay()
            outputs = captured.outputs if size == captured.outputs.shape[0] else captured.outputs[:size]
            if self.is_last:
                rows = self._logits[:size]
                rows.copy_(outputs, non_blocking=True)
            else:
                rows = outputs.clone()
            self._done.record(self._stream)
        finally:
            torch._C._cuda_setStream(*before)
        return rows

    def ready(self) -> bool:
        """Whether the last launch is done."""
        done: bool = self._done.query()  # type: ignore[no-untyped-call]
        return done

    def wait(self) -> None:
        """Return when the last launch is done."""
        self._done.synchronize()

    def close(self) -> None:
        """Give graphs and buffers back to the allocator."""
        self._stream.synchronize()
        for captured in self._graphs.values():
            captured.graph.reset()
        self._graphs.clear()
        torch._C._cuda_clearCublasWorkspaces()  # the classifier's, which lies in the pool
        del self._buffer, self._staging, self._logits

    def _copy_in(self, captured: _Captured, inputs: Tensor, size: int) -> None:
        target = captured.inputs if size == captured.inputs.shape[0] else captured.inputs[:size]
        if inputs.is_cuda:
            target.copy_(inputs, non_blocking=True)
        elif self._staging is None:
            target.copy_(inputs)
        else:
            staged = self._staging[: inputs.numel()].view(inputs.shape)
            staged.copy_(inputs)
            target.copy_(staged, non_blocking=True)

    def _capture(self, key: Key, bucket: int) -> _Captured:
        inputs = self._view(key, bucket)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            outputs = self._segments(key, inputs)
        finally:
            graph.capture_end()
        return _Captured(graph, inputs, _window(outputs))

    def _view(self, key: Key, bucket: int) -> Tensor:
        """The part of the input buffer that a bucket of this key fills: NCHW images, NHWC activations."""
        channels, height, width = self._segments.input_shape(key)
        flat = self._buffer[: bucket * channels * height * width]
        if self.segment == 0:
            return flat.view(bucket, channels, height, width)
        return flat.view(bucket, height, width, channels).permute(0, 3, 1, 2)


class _Window:
    """Bytes of device memory as the CUDA array interface describes them."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": (tensor.numel() * tensor.element_size(),),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _window(tensor: Tensor) -> Tensor:
    """The same memory without owning it, so that the pool may use it for the next graph too."""
    flat = torch.as_tensor(_Window(tensor), device=tensor.device).view(tensor.dtype)
    if tensor.dim() == 2:
        return flat.view(tensor.shape)
    count, channels, height, width = tensor.shape
    return flat.view(count, height, width, channels).permute(0, 3, 1, 2)
