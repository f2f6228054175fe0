"""What a cluster's gateways and servers have in common, and how it travels."""

import lzma
import secrets
from collections.abc import Sequence
from time import time
from typing import TypeVar

import msgspec
from msgspec import Struct

from slimsched.serving.execution.live.server_spec import ServerSpec
from slimsched.serving.routing.autoscaler import AutoscaleOptions

T = TypeVar("T")


class Charter(Struct, frozen=True, kw_only=True):
    """The servers there may be, when their clock began, the secret of their doors, limits on how many run."""

    specs: list[ServerSpec]
    epoch_s: float
    secret: str
    autoscale: AutoscaleOptions | None

    @property
    def names(self) -> list[str]:
        """The servers there may be."""
        return [spec.name for spec in self.specs]

    @property
    def at_first(self) -> int:
        """How many run from the start: the least when their number may change, else all."""
        return self.autoscale.min if self.autoscale is not None else len(self.specs)


class Membership(Struct, frozen=True, kw_only=True):
    """What a gateway is given when it joins."""

    number: int
    epoch_s: float
    secret: str


def new_charter(specs: Sequence[ServerSpec], autoscale: AutoscaleOptions | None) -> Charter:
    """The charter of a cluster whose clock begins now."""
    limited = autoscale.limited_to(len(specs)) if autoscale is not None else None
    return Charter(specs=list(specs), epoch_s=time(), secret=secrets.token_hex(16), autoscale=limited)


def encode(value: Struct) -> bytes:
    """Small enough to lie in Ray's own tables, from which it starts an actor again whoever has died."""
    return lzma.compress(msgspec.json.encode(value), preset=0)


def decode(data: bytes, kind: type[T]) -> T:
    """What was encoded."""
    return msgspec.json.decode(lzma.decompress(data), type=kind)


def server_name(name: str) -> str:
    """What a server's actor is called."""
    return f"server {name}"
