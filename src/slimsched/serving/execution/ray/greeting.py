"""What is said on a server's port besides the messages every engine knows."""

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.serving.execution.live.messages import Drain, Fetch, TakeBlock, ToGateway
from slimsched.serving.routing.commands import Forget, RecallRequests

GATEWAY_BITS = 40
"""Requests and blocks of gateway n are numbered from n · 2⁴⁰ on, so that a server can tell whose they are."""


def gateway_of(number: int) -> int:
    """The gateway that gave a request or a block its number."""
    return number >> GATEWAY_BITS


class Hello(Struct, frozen=True, kw_only=True, tag=True):
    """The first words on any connection: the cluster's secret, and which gateway calls (0: a server)."""

    secret: str
    gateway: int = 0


class Leaving(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: send nothing more, and say `Drain` when nothing more is on its way."""


class Handed(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: activations (N, C, H, W), NHWC in memory; none here when the shape is empty."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    values: memoryview = memoryview(b"")


ToDoor = Hello | TakeBlock | Forget | RecallRequests | Drain | Fetch
FromDoor = ToGateway | Leaving


def pack(rows: Tensor | None) -> Handed:
    """Activations as they travel."""
    if rows is None:
        return Handed()
    values = rows.detach().cpu().permute(0, 2, 3, 1).contiguous()
    dtype = str(rows.dtype).removeprefix("torch.")
    return Handed(
        shape=tuple(rows.shape), dtype=dtype, values=memoryview(values.view(torch.uint8).numpy().data)
    )


def unpack(handed: Handed) -> Tensor | None:
    """Activations as they were."""
    if not handed.shape:
        return None
    n, c, h, w = handed.shape
    values = bytearray(handed.values) if handed.values.readonly else handed.values
    raw = torch.frombuffer(values, dtype=getattr(torch, handed.dtype))
    return raw.view(n, h, w, c).permute(0, 3, 1, 2)
