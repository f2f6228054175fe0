"""The seam between the gateway and whoever decides where, how wide and how grouped."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from slimsched.domain.request import Request
from slimsched.routing.observation import Observation


class Route(Struct, frozen=True):
    """Send up to `group` requests of the head to `server`, to run at `width` and go on there at `ahead`."""

    server: int
    width: float
    group: int
    reason: str = ""
    ahead: tuple[float, ...] = ()


class Listener(Protocol):
    """A router that wants to know what became of requests."""

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """These have been answered."""
        ...


class Router(Protocol):
    """Classical and learned routers are the same kind of thing."""

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue; None means wait."""
        ...
