"""What gateways and servers on Ray say to each other, what all of them know, and what resources they need."""

import lzma
import secrets
from collections.abc import Sequence
from time import time
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from slimsched.serving.domain.cluster import Host
from slimsched.serving.gateway.messages import Forget, RecallRequests
from slimsched.serving.live.wire import Drain, Fetch, Ping, ServerSpec, TakeBlock, TensorFacts, ToGateway
from slimsched.serving.routers.autoscaler import AutoscaleOptions

# -- The resources that a server needs, as options of a Ray actor.


def actor_options(host: Host) -> dict[str, Any]:
    """Return actor options: CPUs by threads, GPUs by MPS share, custom resources and labels unchanged."""
    options: dict[str, Any] = {
        "num_cpus": host.threads,
        "resources": dict(host.resources),
        "scheduling_strategy": "SPREAD",  # so that a dead node takes few servers with it
    }
    if host.kind == "cuda":
        options |= {"num_cpus": 1, "num_gpus": host.mps_percentage / 100}
    if host.labels:
        options["label_selector"] = dict(host.labels)
    return options


def needs(host: Host) -> str:
    """Describe the resources in words, for error messages."""
    options = actor_options(host)
    wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options["resources"]}
    words = [f"{amount:g} {name}" for name, amount in wanted.items() if amount]
    return ", ".join(words + [f"{key}={value}" for key, value in host.labels.items()])


# -- The charter of a cluster, which its gateways and servers share, and its encoding.

T = TypeVar("T")


class Charter(Struct, frozen=True, kw_only=True):
    """All servers, the start of their clock, the secret of their sockets, and how many may run."""

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


ROSTER = "roster"
"""The name of the roster's actor."""

LEAVE_LIMIT_S = 30.0
"""How long a server that was told to leave may take to finish its work."""


def server_name(name: str) -> str:
    """Return the name of a server's actor."""
    return f"server {name}"


# -- Messages on a server's port that only the Ray engine uses.

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


ToActor = Hello | TakeBlock | Forget | RecallRequests | Drain | Fetch | Ping
FromActor = ToGateway | Leaving
