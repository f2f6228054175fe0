"""A goal: limits that a user states, and the one figure to improve within them.

People write a goal as clauses in any order, separated by commas: "accuracy>=75, p99<=60ms, min energy". The
command line, scenario files, `PUT /v2/goal` and the dashboard all take this text. `parse_goal` turns it into
a `Goal`.

If not all limits can be kept, they yield in a fixed order: first the accuracy floor, then energy and power,
and latency last (`YIELDING`). What a request asks for itself does not yield to a goal.

Terms that senders set for single requests limit a router's choices in the same way.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from slimsched.core.config import Amount, ConfigError, Seconds, Share, convert
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request

# -- Terms that senders set limit a router's choices: accuracy floors and energy ceilings.


def choice_within_terms(cluster: Cluster, server: int, choice: int, requests: Sequence[Request]) -> int:
    """Return the choice nearest the router's that meets every request's terms; accuracy wins a conflict."""
    ceiling = min([_widest_affordable(cluster, server, request) for request in requests])
    floor = max([_narrowest_accurate(cluster, request) for request in requests])
    return max(floor, min(choice, ceiling))


@lru_cache(maxsize=16)
def least_energy_j(cluster: Cluster, model: int) -> float:
    """Return the least energy per example that any plan of a model takes on any server, in full batches."""
    tree = cluster.models[model].tree
    return min(
        _least_j(cluster, server, model, plan) for server in range(len(cluster)) for plan in tree.plans
    )


def _choices(cluster: Cluster, request: Request) -> list[int]:
    tree = cluster.models[request.model].tree
    return [int(choice) for choice in tree.choices[tree.row[request.path]]]


def _narrowest_accurate(cluster: Cluster, request: Request) -> int:
    """Return the narrowest choice after which the accuracy asked for can still be reached."""
    reach = cluster.models[request.model].quality.best_reachable
    choices = _choices(cluster, request)
    for choice in choices:
        if reach((*request.path, choice)) >= request.min_accuracy:
            return choice
    return max(choices, key=lambda choice: reach((*request.path, choice)))


def _widest_affordable(cluster: Cluster, server: int, request: Request) -> int:
    """Return the widest choice within the energy limit, counting the least energy of later segments."""
    choices = _choices(cluster, request)
    if request.max_energy_j <= 0.0:
        return choices[-1]
    affordable = [
        choice
        for choice in choices
        if _least_j(cluster, server, request.model, (*request.path, choice)) <= request.max_energy_j
    ]
    return affordable[-1] if affordable else choices[0]


def _least_j(cluster: Cluster, server: int, model: int, path: Path) -> float:
    """Return the energy of these choices and the narrowest ones after them, in full batches on one server."""
    profile, size, served = cluster.profiles[server], cluster.batch_limit, cluster.models[model]
    plan = served.tree.complete(path, widest=False)
    return sum(profile.energy_j(key, size) / size for key in served.legs(plan))


Objective = Literal["accuracy", "energy", "latency"]

SYNTAX = (
    "accuracy>=75, p99<=60ms, p95<=50ms, mean<=20ms, energy<=20mJ, power<=30W, and one of: min energy, "
    "min latency, max accuracy"
)
YIELDING = "accuracy first, then energy and power, latency last"
"""The order in which limits yield when not all can be kept."""

LONGEST_S = 86_400.0
MOST_J, MOST_W = 1e6, 1e9

_ACCURACY = re.compile(r"accuracy\s*(?:>=|≥)\s*(?P<value>[0-9.]+)\s*%?")
_LATENCY = re.compile(r"(?P<name>p99|p95|mean)\s*(?:<=|≤)\s*(?P<value>[0-9.]+)\s*(?P<unit>ms|s)")
_ENERGY = re.compile(r"energy\s*(?:<=|≤)\s*(?P<value>[0-9.]+)\s*(?P<unit>mj|j)")
_POWER = re.compile(r"power\s*(?:<=|≤)\s*(?P<value>[0-9.]+)\s*(?P<unit>mw|w|kw)")
_OBJECTIVE = re.compile(r"(?P<way>min|max)(?:imi[sz]e)?\s+(?P<objective>energy|latency|accuracy)")
_UNITS = {"ms": 1e-3, "s": 1.0, "mj": 1e-3, "j": 1.0, "mw": 1e-3, "w": 1.0, "kw": 1e3}


class LatencyLimit(NamedTuple):
    """A limit on one figure of latency: p99, p95 or mean."""

    figure: str
    limit_s: float

    @property
    def text(self) -> str:
        """The clause as a user writes it."""
        return f"{self.figure}<={1e3 * self.limit_s:g}ms"


class Goal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits, and the figure to optimise within them; zero means no limit.

    `min_accuracy` is a floor for the mean accuracy. `p99_s`, `p95_s` and `mean_s` limit latency. `energy_j`
    limits the energy above idle per answer, `power_w` the power of all servers together, idle included. A
    request can ask for more: its own `min_accuracy` rules out plans below it. `by_model` holds the goals of
    single models, by name; they replace this goal for these models, except for energy and power.
    """

    objective: Objective = "accuracy"
    min_accuracy: Share = 0.0
    p99_s: Seconds = 0.0
    p95_s: Seconds = 0.0
    mean_s: Seconds = 0.0
    energy_j: Amount = 0.0
    power_w: Amount = 0.0
    by_model: dict[str, "Goal"] = {}

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_accuracy < 1.0:
            raise ConfigError(
                f"accuracy>={100 * self.min_accuracy:g} cannot be met; give a percentage below 100, "
                "or a share such as 0.75"
            )
        for limit in self.latency_limits:
            if not 0.0 <= limit.limit_s <= LONGEST_S:
                raise ConfigError(f"{limit.text} cannot be met; give milliseconds above 0")
        if self.objective != "accuracy" and not self.min_accuracy:
            raise ConfigError(
                f"min {self.objective} needs an accuracy floor, such as accuracy>=75: without one the "
                "narrowest plan always wins"
            )
        objectives = {self.objective, *(one.objective for one in self.by_model.values())}
        if "latency" in objectives and self.limits_energy:
            raise ConfigError(
                "min latency does not go with a limit on energy or power; leave one out, or limit latency "
                "with p99<=60ms instead"
            )
        if any(one.limits_energy for one in self.by_model.values()):
            raise ConfigError(
                "energy and power are those of all models together: limit them in the general goal, not for "
                "one model"
            )

    def of(self, model: str) -> "Goal":
        """The goal of one model."""
        return self.by_model.get(model, self)

    @property
    def latency_limits(self) -> tuple[LatencyLimit, ...]:
        """The limits on latency that are stated."""
        stated = (("p99", self.p99_s), ("p95", self.p95_s), ("mean", self.mean_s))
        return tuple(LatencyLimit(figure, limit_s) for figure, limit_s in stated if limit_s)

    @property
    def tail_s(self) -> float:
        """How long nearly every answer may take; 0 if no limit says so."""
        return self.p99_s or self.p95_s

    @property
    def limits_energy(self) -> bool:
        """Whether energy or power is limited."""
        return bool(self.energy_j or self.power_w)

    @property
    def names_energy(self) -> bool:
        """Whether energy or power is limited, or energy is what to optimise."""
        return self.limits_energy or self.objective == "energy"

    def clauses(self, models: Sequence[str] = ("",)) -> list[str]:
        """Write the limits as a user does, in the order in which they yield.

        With several models, each of their own limits stands after the model's name.
        """
        named = [(f"{model}: " if len(models) > 1 else "", self.of(model)) for model in models]
        texts = [f"{name}accuracy>={100 * one.min_accuracy:g}" for name, one in named if one.min_accuracy]
        texts += [f"energy<={1e3 * self.energy_j:g}mJ"] if self.energy_j else []
        texts += [f"power<={self.power_w:g}W"] if self.power_w else []
        return texts + [f"{name}{limit.text}" for name, one in named for limit in one.latency_limits]


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


def check_affordable(goal: Goal, cluster: Cluster) -> None:
    """Refuse limits on energy and power that no plan on any server can keep."""
    idle_w = sum(profile.idle_w for profile in cluster.profiles)
    if 0.0 < goal.power_w <= idle_w:
        raise ConfigError(f"power<={goal.power_w:g}W: the servers draw {idle_w:.4g} W when idle; give more")
    for model in cluster.active if goal.energy_j else ():
        least_j = least_energy_j(cluster, model.number)
        if goal.energy_j < least_j:
            raise ConfigError(
                f"energy<={1e3 * goal.energy_j:g}mJ: the cheapest plan of {model.name} takes "
                f"{1e3 * least_j:.3g} mJ in a full batch; give more"
            )


def format_goal(goal: Goal) -> str:
    """Write a goal as `parse_goal` reads it; those of single models are texts of their own."""
    objective = "max accuracy" if goal.objective == "accuracy" else f"min {goal.objective}"
    return ", ".join([*goal.clauses(), objective])


def format_goals(goal: Goal) -> str:
    """Write a goal with those of single models, in one line for people."""
    own = [f"{model}: {format_goal(one)}" for model, one in goal.by_model.items()]
    return "; ".join([format_goal(goal), *own])


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
        if match := _LATENCY.fullmatch(clause):
            most = (LONGEST_S, "a time above 0, up to a day")
            return f"{match['name']}_s", _limit(match, most, f"goal '{text}': '{clause}'")
        if match := _ENERGY.fullmatch(clause):
            most = (MOST_J, "millijoules above 0")
            return "energy_j", _limit(match, most, f"goal '{text}': '{clause}'")
        if match := _POWER.fullmatch(clause):
            return "power_w", _limit(match, (MOST_W, "watts above 0"), f"goal '{text}': '{clause}'")
    except ValueError:
        pass  # 1.2.3 is not a number
    raise ConfigError(f"goal '{text}': '{clause}' is not understood; write {SYNTAX}")


def _limit(match: re.Match[str], most: tuple[float, str], where: str) -> float:
    """Return a limit in its base unit; refuse one that nothing can keep."""
    value = float(match["value"]) * _UNITS[match["unit"]]
    if not 0.0 < value <= most[0]:
        raise ConfigError(f"{where} cannot be met; give {most[1]}")
    return value
