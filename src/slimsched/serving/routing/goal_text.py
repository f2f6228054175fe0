"""Goals as people write them: "accuracy>=75, p99<=60ms, min energy"."""

import re

from slimsched.kernel.errors import ConfigError
from slimsched.serving.routing.goal import Goal, goal_of

FORM = "accuracy>=75, p99<=60ms, and one of: min energy, min latency, max accuracy"

_ACCURACY = re.compile(r"accuracy\s*(?:>=|≥)\s*(?P<value>[0-9.]+)\s*%?")
_P99 = re.compile(r"p99\s*(?:<=|≤)\s*(?P<value>[0-9.]+)\s*(?P<unit>ms|s)")
_OBJECTIVE = re.compile(r"(?P<way>min|max)(?:imi[sz]e)?\s+(?P<what>energy|latency|accuracy)")


def parse_goal(text: str) -> Goal:
    """Clauses in any order, separated by commas, each at most once."""
    found: dict[str, float | str] = {}
    for clause in (part.strip().lower() for part in text.split(",")):
        name, value = _clause(clause, text)
        if name in found or (name.endswith("imise") and {"minimise", "maximise"} & found.keys()):
            raise ConfigError(f"goal '{text}' says '{clause}' after it said so already; say it once")
        found[name] = value
    return goal_of(**found)  # type: ignore[arg-type]


def format_goal(goal: Goal) -> str:
    """The same in words that `parse_goal` takes."""
    clauses = [f"accuracy>={100 * goal.min_accuracy:g}"] if goal.min_accuracy else []
    clauses += [f"p99<={1e3 * goal.p99_s:g}ms"] if goal.p99_s else []
    return ", ".join([*clauses, "max accuracy" if goal.objective == "accuracy" else f"min {goal.objective}"])


def goal_options(goal: Goal) -> dict[str, float | str | None]:
    """The same as options of the goal router."""
    return {
        "min_accuracy": goal.min_accuracy or None,
        "p99_ms": 1e3 * goal.p99_s or None,
        "minimise": None if goal.objective == "accuracy" else goal.objective,
    }


def _clause(clause: str, text: str) -> tuple[str, float | str]:
    if match := _OBJECTIVE.fullmatch(clause):
        return f"{match['way']}imise", match["what"]
    try:
        if match := _ACCURACY.fullmatch(clause):
            return "min_accuracy", float(match["value"])
        if match := _P99.fullmatch(clause):
            return "p99_ms", float(match["value"]) * (1e3 if match["unit"] == "s" else 1.0)
    except ValueError:
        pass  # 1.2.3 is no number
    raise ConfigError(f"goal '{text}': '{clause}' is not understood; write {FORM}")
