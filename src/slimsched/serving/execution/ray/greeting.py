"""Messages on a server's port that only the Ray engine uses."""

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.models.elastic import Tensors
from slimsched.serving.gateway.messages import Forget, RecallRequests
from slimsched.serving.live.peers import dense, facts_of, view_of
from slimsched.serving.live.wire import Drain, Fetch, Ping, TakeBlock, TensorFacts, ToGateway

GATEWAY_BITS = 40
"""Gateway n numbers its requests and blocks from n · 2⁴⁰, so that servers can tell gateways apart."""


def gateway_of(number: int) -> int:
    """Return the gateway that gave a request or block its number."""
    return number >> GATEWAY_BITS


class Hello(Struct, frozen=True, kw_only=True, tag=True):
    """First message on a connection: the cluster's secret and the gateway's number (0: a server)."""

    secret: str
    gateway: int = 0


class Leaving(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: send nothing more, and confirm with `Drain`."""


class Handed(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: the activations as one entry per tensor; empty if they are not here."""

    facts: list[TensorFacts] = []
    values: list[memoryview] = []


ToDoor = Hello | TakeBlock | Forget | RecallRequests | Drain | Fetch | Ping
FromDoor = ToGateway | Leaving


def pack(rows: Tensors | None) -> Handed:
    """Turn activations into a message."""
    tensors = [dense(tensor.detach().cpu()) for tensor in rows or ()]
    return Handed(facts=[facts_of(tensor) for tensor in tensors], values=[_raw(tensor) for tensor in tensors])


def unpack(handed: Handed) -> Tensors | None:
    """Turn a message back into activations."""
    if not handed.facts:
        return None
    return tuple(
        view_of(facts, bytearray(values)) for facts, values in zip(handed.facts, handed.values, strict=True)
    )


def _raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a dense tensor in memory order."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy().data)
