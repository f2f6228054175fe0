"""The goal of a running cluster: show it, change it without a restart, and keep it across restarts."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError, read_small_file
from slimsched.serving.api.json_body import read_body
from slimsched.serving.api.refusal import BadRequest, NotFound, Unavailable
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import Goal, check_affordable, format_goal, parse_goal, reachable_goal
from slimsched.serving.routers.guard import goal_of, yielding_of

Text = Annotated[str, Meta(max_length=1000)]


class GoalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v2/goal: the goal of one model, or of all that have none of their own.

    With a model, null as the goal means that the model has no goal of its own any more.
    """

    goal: Text | None
    model: Text | None = None


LARGEST_BYTES = 2**20
"""How large the file with the saved goal may be."""


class _SavedGoal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The saved goal, and the router with which the server had been started."""

    started_with: str
    goal: str
    models: dict[str, str] = {}


_request = msgspec.json.Decoder(GoalRequest)


class GoalState:
    """Keeps the goal in a file.

    The saved goal applies only if the server starts with the same router and goal again; otherwise the new
    command line wins.
    """

    def __init__(self, path: Path, started_with: str) -> None:
        self._path, self._started_with = path, started_with

    def read(self) -> Goal | None:
        """Return the saved goal, or None if there is none for this command line."""
        try:
            kept = msgspec.json.decode(read_small_file(self._path, LARGEST_BYTES), type=_SavedGoal)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, ConfigError) as error:
            raise ConfigError(
                f"{self._path} does not hold a saved goal ({error}); remove it, or name another with --state"
            ) from None
        if kept.started_with != self._started_with:
            return None
        own = {model: parse_goal(text) for model, text in kept.models.items()}
        return replace(parse_goal(kept.goal), by_model=own)

    def write(self, goal: Goal) -> None:
        """Save a goal. The file is replaced in one step, so a reader never sees half of it."""
        own = {model: format_goal(one) for model, one in goal.by_model.items()}
        kept = _SavedGoal(started_with=self._started_with, goal=format_goal(goal), models=own)
        beside = self._path.with_name(f"{self._path.name}.new")
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(f"{self._path} is not a regular file; name another with --state")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(kept))
            os.replace(beside, self._path)
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path} ({error}); choose a file that can be written"
            ) from None


class GoalControl:
    """Shows and changes the goal. Requests under way meet the new goal at their next segment.

    `set_goal` tells the gateway of a change, so that the change is an event in the log like any other.
    """

    def __init__(
        self, gateway: Gateway, set_goal: Callable[[Goal], None], state: GoalState | None = None
    ) -> None:
        self._gateway, self._set, self._state = gateway, set_goal, state

    def resume(self) -> str | None:
        """Apply the goal that was saved before a restart and return it; None if none was saved."""
        kept = None if self._state is None else self._state.read()
        if kept is not None and self.goal is not None:
            self._check_reach(kept)
            self._set(kept)
            return format_goal(kept)
        return None

    @property
    def goal(self) -> Goal | None:
        """The current goal, or None if the router does not follow one."""
        return goal_of(self._gateway.router)

    def show(self) -> dict[str, object]:
        """Return the goal as text and as numbers, and the limits that are not kept now."""
        if (goal := self.goal) is None:
            return {"goal": None, "reason": "this server's router follows no goal; start it with --goal"}
        own = {"models": {name: _shown(one) for name, one in goal.by_model.items()}} if goal.by_model else {}
        return {**_shown(goal), **own, "yielding": list(yielding_of(self._gateway.router))}

    def change(self, body: bytes | bytearray) -> dict[str, object]:
        """Set the goal that a request's body holds, and return it."""
        if self.goal is None:
            raise BadRequest("this server's router follows no goal; start it with --goal or --router goal")
        asked = read_body(_request, body, 'such as {"goal": "accuracy>=75"}')
        try:
            goal = self._changed(self.goal, asked)
            check_affordable(goal, self._gateway.cluster)
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        if self._state is not None:
            try:
                self._state.write(goal)
            except ConfigError as error:
                raise Unavailable(f"the goal was not changed: {error}") from None
        self._set(goal)
        return self.show()

    def _changed(self, goal: Goal, asked: GoalRequest) -> Goal:
        """The goal as a request wants it; a general goal leaves those of single models as they are."""
        models = self._gateway.cluster.active
        if asked.model is None:
            if asked.goal is None:
                raise BadRequest('null is no goal; send {"goal": "max accuracy"} to ask for nothing else')
            others = [model for model in models if model.name not in goal.by_model]
            return replace(reachable_goal(asked.goal, others), by_model=goal.by_model)
        named = [model for model in models if model.name == asked.model]
        if not named:
            known = ", ".join(f"'{model.name}'" for model in models)
            raise NotFound(f"unknown model '{asked.model}'; this server has {known}")
        own = {name: one for name, one in goal.by_model.items() if name != asked.model}
        if asked.goal is not None:
            own[asked.model] = reachable_goal(asked.goal, named)
        return replace(goal, by_model=own)

    def _check_reach(self, goal: Goal) -> None:
        for model in self._gateway.cluster.active:
            reachable_goal(format_goal(goal.of(model.name)), [model])
        check_affordable(goal, self._gateway.cluster)


def _shown(goal: Goal) -> dict[str, object]:
    return {
        "goal": format_goal(goal),
        "objective": goal.objective,
        "min_accuracy": goal.min_accuracy or None,
        "p99_ms": 1e3 * goal.p99_s or None,
        "p95_ms": 1e3 * goal.p95_s or None,
        "mean_ms": 1e3 * goal.mean_s or None,
        "energy_mj": 1e3 * goal.energy_j or None,
        "power_w": goal.power_w or None,
    }
