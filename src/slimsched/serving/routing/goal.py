"""A goal: limits that a user states, and the one figure to improve within them.

People write a goal as clauses in any order, separated by commas: "accuracy>=75, p99<=60ms, min energy". The
command line, scenario files, `PUT /v2/goal` and the dashboard all take this text. `parse_goal` turns it into
a `Goal`.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from slimsched.kernel.errors import ConfigError
from slimsched.kernel.quantity import Seconds, Share
from slimsched.kernel.section import convert
from slimsched.serving.domain.served_model import ServedModel

Objective = Literal["accuracy", "energy", "latency"]

SYNTAX = "accuracy>=75, p99<=60ms, and one of: min energy, min latency, max accuracy"

LONGEST_S = 86_400.0

_ACCURACY = re.compile(r"accuracy\s*(?:>=|≥)\s*(?P<value>[0-9.]+)\s*%?")
_P99 = re.compile(r"p99\s*(?:<=|≤)\s*(?P<value>[0-9.]+)\s*(?P<unit>ms|s)")
_OBJECTIVE = re.compile(r"(?P<way>min|max)(?:imi[sz]e)?\s+(?P<objective>energy|latency|accuracy)")


class Goal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A floor for mean accuracy, a limit on p99 latency, and the figure to optimise within both.

    Zero means no limit. A request can ask for more: its own `min_accuracy` rules out plans below it.
    `by_model` holds the goals of single models, by name; they replace this goal for these models.
    """

    objective: Objective = "accuracy"
    min_accuracy: Share = 0.0
    p99_s: Seconds = 0.0
    by_model: dict[str, "Goal"] = {}

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_accuracy < 1.0:
            raise ConfigError(
                f"accuracy>={100 * self.min_accuracy:g} cannot be met; give a percentage below 100, "
                "or a share such as 0.75"
            )
        if not 0.0 <= self.p99_s <= LONGEST_S:
            raise ConfigError(f"p99<={1000 * self.p99_s:g}ms cannot be met; give milliseconds above 0")
        if self.objective != "accuracy" and not self.min_accuracy:
            raise ConfigError(
                f"min {self.objective} needs an accuracy floor, such as accuracy>=75: without one the "
                "narrowest plan always wins"
            )

    def of(self, model: str) -> "Goal":
        """The goal of one model."""
        return self.by_model.get(model, self)


def parse_goal(text: str) -> Goal:
    """Read a goal; each limit, and the objective, may be stated once."""
    fields: dict[str, Any] = {}
    for clause in (part.strip().lower() for part in text.split(",")):
        name, value = _read_clause(clause, text)
        if name in fields:
            raise ConfigError(f"goal '{text}': '{clause}' repeats an earlier clause; state it once")
        fields[name] = value
    return convert(fields, Goal, f"goal '{text}'")


def reachable_goal(text: str, models: Iterable[ServedModel]) -> Goal:
    """Read a goal; refuse one that the best plan of some model cannot reach."""
    goal = parse_goal(text)
    check_reachable(goal, models)
    return goal


def check_reachable(goal: Goal, models: Iterable[ServedModel]) -> None:
    """Refuse a goal that the best plan of some model cannot reach; each model has its own or the general."""
    for model in models:
        best = model.quality.best_reachable(())
        if goal.of(model.name).min_accuracy > best:
            raise ConfigError(f"the best plan of {model.name} reaches {100 * best:.2f} %; ask for less")


def format_goal(goal: Goal) -> str:
    """Write a goal as `parse_goal` reads it; those of single models are texts of their own."""
    clauses = [f"accuracy>={100 * goal.min_accuracy:g}"] if goal.min_accuracy else []
    clauses += [f"p99<={1e3 * goal.p99_s:g}ms"] if goal.p99_s else []
    return ", ".join([*clauses, "max accuracy" if goal.objective == "accuracy" else f"min {goal.objective}"])


def _read_clause(clause: str, text: str) -> tuple[str, Any]:
    """Return the field of `Goal` that a clause sets, and its value."""
    if match := _OBJECTIVE.fullmatch(clause):
        if (match["way"] == "max") == (match["objective"] == "accuracy"):
            return "objective", match["objective"]
        raise ConfigError(f"goal '{text}': '{clause}' makes no sense; write {SYNTAX}")
    try:
        if match := _ACCURACY.fullmatch(clause):
            accuracy = float(match["value"])
            return "min_accuracy", accuracy / 100.0 if accuracy > 1.0 else accuracy
        if match := _P99.fullmatch(clause):
            p99_s = float(match["value"]) / (1e3 if match["unit"] == "ms" else 1.0)
            if not 0.0 < p99_s <= LONGEST_S:
                raise ConfigError(
                    f"goal '{text}': '{clause}' cannot be met; give a time above 0, up to a day"
                )
            return "p99_s", p99_s
    except ValueError:
        pass  # 1.2.3 is not a number
    raise ConfigError(f"goal '{text}': '{clause}' is not understood; write {SYNTAX}")
