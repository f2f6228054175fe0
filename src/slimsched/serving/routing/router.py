"""The seam between the gateway and whoever decides where, how wide and how grouped."""

from typing import Protocol

from msgspec import Struct

from slimsched.serving.routing.observation import Observation


class Route(Struct, frozen=True):
    """Send up to `group` requests of the head to `server`, to run at `choice` and go on there at `ahead`."""

    server: int
    choice: int
    group: int
    reason: str = ""
    ahead: tuple[int, ...] = ()


class Router(Protocol):
    """Classical and learned routers are the same kind of thing.

    One that also has `answered(requests, now_s)` is told of requests that have been answered.
    """

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue; None means wait."""
        ...
