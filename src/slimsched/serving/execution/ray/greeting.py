"""What is said on a server's port besides the messages every engine knows."""

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.models.elastic import Tensors
from slimsched.serving.execution.live.messages import Drain, Fetch, TakeBlock, ToGateway
from slimsched.serving.execution.live.shared_tensor import TensorFacts, dense, facts_of
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
    """Server to server: activations, tensor by tensor; none when they are not here."""

    facts: list[TensorFacts] = []
    values: list[memoryview] = []


ToDoor = Hello | TakeBlock | Forget | RecallRequests | Drain | Fetch
FromDoor = ToGateway | Leaving


def pack(rows: Tensors | None) -> Handed:
    """Activations as they travel."""
    tensors = [dense(tensor.detach().cpu()) for tensor in rows or ()]
    return Handed(facts=[facts_of(tensor) for tensor in tensors], values=[_raw(tensor) for tensor in tensors])


def unpack(handed: Handed) -> Tensors | None:
    """Activations as they were."""
    if not handed.facts:
        return None
    return tuple(
        facts.view(bytearray(values)) for facts, values in zip(handed.facts, handed.values, strict=True)
    )


def _raw(tensor: Tensor) -> memoryview:
    """The bytes of a dense tensor as they lie in memory."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy().data)
