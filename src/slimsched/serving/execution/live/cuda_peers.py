"""Moves activations between processes that share a GPU: the data stays there, only a handle is sent."""

import msgspec
import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from torch.storage import TypedStorage

from slimsched.serving.execution.live.messages import SharedTensor
from slimsched.serving.execution.live.unix_peers import UnixPeers


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
