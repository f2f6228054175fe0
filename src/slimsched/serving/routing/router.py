"""The interface between the gateway and a router."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from slimsched.serving.domain.request import Request, Why
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.observation import Observation


class Route(Struct, frozen=True):
    """Send up to `group` requests of the head to `server`; run at `choice`, then go on there at `ahead`.

    `why` holds the numbers behind the reason, where the router has any.
    """

    server: int
    choice: int
    group: int
    reason: str = ""
    ahead: tuple[int, ...] = ()
    why: Why | None = None


class Router(Protocol):
    """Decides where requests run, at which choice and in which group.

    A router that is also an `AnswerListener` is told about answers. One that is also a `GoalFollower` can be
    given another goal.
    """

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue; None means wait."""
        ...


@runtime_checkable
class AnswerListener(Protocol):
    """A router that learns from answers."""

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """These requests were answered now; each stands for `count` examples."""
        ...


class Verdict(Struct, frozen=True, kw_only=True):
    """What to do with an answer: send it, or go on with another plan.

    `plan` is the number of the plan to go on with, -1 to send the answer. `sure` is the chance that the
    answer is right, `hope` the chance that the other plan's will be. `check` says that the other plan runs
    only to check the answer.
    """

    plan: int = -1
    sure: float
    hope: float = -1.0
    why: str
    check: bool = False


@runtime_checkable
class Judge(Protocol):
    """A router that decides, answer by answer, whether to stop or to go on with a wider plan."""

    def keeps(self, model: int) -> bool:
        """Whether answers of this model are judged, so that servers must keep activations."""
        ...

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        """Decide about the answer of a request whose plan is complete."""
        ...


@runtime_checkable
class GoalFollower(Protocol):
    """A router that follows a goal, which the operator may change."""

    def with_goal(self, goal: Goal) -> Router:
        """Return the same router with another goal."""
        ...
