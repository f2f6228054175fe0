"""The seam between the gateway and whoever decides where, how wide and how grouped."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from slimsched.serving.domain.request import Request
from slimsched.serving.routing.goal import Goal
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

    A router that also is an `AnswerListener` is told of answers; one that is a `GoalFollower` can be given
    another goal.
    """

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue; None means wait."""
        ...


@runtime_checkable
class AnswerListener(Protocol):
    """A router that learns from answers."""

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """These requests were answered now."""
        ...


@runtime_checkable
class GoalFollower(Protocol):
    """A router that keeps a goal the operator may change."""

    def with_goal(self, goal: Goal) -> Router:
        """Return the same router with another goal."""
        ...
