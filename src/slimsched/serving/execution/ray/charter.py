"""The charter of a cluster, which its gateways and servers share, and its encoding."""

import lzma
import secrets
from collections.abc import Sequence
from time import time
from typing import TypeVar

import msgspec
from msgspec import Struct

from slimsched.serving.live.wire import ServerSpec
from slimsched.serving.routers.autoscaler import AutoscaleOptions

T = TypeVar("T")


class Charter(Struct, frozen=True, kw_only=True):
    """All servers, the start of their clock, the secret of their doors, and how many may run."""

    specs: list[ServerSpec]
    epoch_s: float
    secret: str
    autoscale: AutoscaleOptions | None

    @property
    def names(self) -> list[str]:
        """Names of all servers."""
        return [spec.name for spec in self.specs]

    @property
    def at_first(self) -> int:
        """How many servers run at the start: the minimum with an autoscaler, else all."""
        return self.autoscale.min if self.autoscale is not None else len(self.specs)


class Membership(Struct, frozen=True, kw_only=True):
    """What a gateway receives when it joins."""

    number: int
    epoch_s: float
    secret: str


def new_charter(specs: Sequence[ServerSpec], autoscale: AutoscaleOptions | None) -> Charter:
    """Make the charter of a cluster whose clock starts now."""
    limited = autoscale.limited_to(len(specs)) if autoscale is not None else None
    return Charter(specs=list(specs), epoch_s=time(), secret=secrets.token_hex(16), autoscale=limited)


def encode(value: Struct) -> bytes:
    """Encode a value so small that it fits into Ray's own tables, from which Ray restarts actors."""
    return lzma.compress(msgspec.json.encode(value), preset=0)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode an encoded value."""
    return msgspec.json.decode(lzma.decompress(data), type=kind)


def server_name(name: str) -> str:
    """Return the name of a server's actor."""
    return f"server {name}"
