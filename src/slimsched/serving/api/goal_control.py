"""The goal of a running cluster: what it is, and how to change it without stopping."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import ConfigError
from slimsched.serving.api.goal_state import GoalState
from slimsched.serving.api.refusal import BadRequest, Unavailable
from slimsched.serving.routing.gateway import Gateway
from slimsched.serving.routing.goal import Goal, format_goal, parse_goal
from slimsched.serving.routing.guard import GuardedRouter


class GoalWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v2/goal."""

    goal: str


class GoalControl:
    """Shows the goal and changes it; requests under way meet the new one at their next segment.

    `set_goal` tells the gateway of a change, so that the change is an event in the log like any other.
    """

    def __init__(
        self, gateway: Gateway, set_goal: Callable[[Goal], None], state: GoalState | None = None
    ) -> None:
        self._gateway, self._set, self._state = gateway, set_goal, state

    def resume(self) -> str | None:
        """Go on with the goal that was set before a restart; None if there is none."""
        kept = None if self._state is None else self._state.read()
        if kept is not None and self.goal is not None:
            self._set(self._checked(kept))
            return kept
        return None

    @property
    def goal(self) -> Goal | None:
        """The goal now; None where the router follows none."""
        router = self._gateway.router
        return router.router.goal if isinstance(router, GuardedRouter) else None

    def show(self) -> dict[str, object]:
        """The goal in words and figures."""
        if (goal := self.goal) is None:
            return {"goal": None, "reason": "this server's router follows no goal; start it with --goal"}
        return {
            "goal": format_goal(goal),
            "objective": goal.objective,
            "min_accuracy": goal.min_accuracy or None,
            "p99_ms": 1e3 * goal.p99_s or None,
        }

    def change(self, body: bytes) -> dict[str, object]:
        """Take the goal in a request's body."""
        if self.goal is None:
            raise BadRequest("this server's router follows no goal; start it with --goal or --router goal")
        try:
            goal = self._checked(msgspec.json.decode(body, type=GoalWish).goal)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f'no goal in the body ({error}); send {{"goal": "accuracy>=75"}}') from None
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        if self._state is not None:
            try:
                self._state.write(format_goal(goal))
            except ConfigError as error:
                raise Unavailable(f"the goal was not changed: {error}") from None
        self._set(goal)
        return self.show()

    def _checked(self, text: str) -> Goal:
        """A goal that this network can reach."""
        goal, best = parse_goal(text), float(self._gateway.cluster.accuracy.by_tuple.max())
        if goal.min_accuracy > best:
            raise ConfigError(f"the best widths reach {100 * best:.2f} %; ask for less than that")
        return goal
