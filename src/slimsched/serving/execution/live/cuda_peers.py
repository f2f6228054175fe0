"""Activations between processes that share a GPU: they stay on it, and only a handle travels."""

import msgspec
import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from torch.storage import TypedStorage

from slimsched.serving.execution.live.messages import SharedTensor
from slimsched.serving.execution.live.unix_peers import UnixPeers


class CudaPeers(UnixPeers):
    """CUDA IPC in place of shared host memory, which remains the way for what cannot be shared."""

    def __init__(self, shared_prefix: str, device: torch.device) -> None:
        super().__init__(shared_prefix)
        self._device = device

    def _put(self, tensor: Tensor) -> SharedTensor:
        if not tensor.is_cuda:
            return super()._put(tensor)
        try:
            return SharedTensor(handle=_pack(tensor))
        except RuntimeError:  # the device or its driver does not share memory between processes
            return super()._put(tensor)

    def _take(self, shared: SharedTensor) -> Tensor | None:
        """Copied at once, so that the peer's memory is free again and its death later does no harm."""
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
    """What another process needs to map these rows; no pickle."""
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
