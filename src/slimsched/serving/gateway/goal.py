"""A goal: limits that a user states, and the one figure to improve within them.

People write a goal as clauses in any order, separated by commas: "accuracy>=75, p99<=60ms, min energy". The
command line, scenario files, `PUT /v2/goal` and the dashboard all take this text. `parse_goal` turns it into
a `Goal`.

If not all limits can be kept, they yield in a fixed order: first the accuracy floor, then energy and power,
and latency last (`YIELDING`). What a request asks for itself does not yield to a goal.

Terms that senders set for single requests limit a router's choices in the same way.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import exp
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import Amount, ConfigError, Seconds, Share, convert
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster, Values
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key, Request

# -- Prices: what a unit of time, energy and accuracy is worth under this goal and load.
#
# Prices of device time: what the load makes a second of a device worth, and what plans are worth at that.
# The price comes from the fluid programme for the current load, and is corrected by the backlog.
#
# The plan: the unit of device time is one widest plan. At price π a request takes demand(π) units, and the
# cluster has capacity = Σ_i 1 / full_i units per second, so the price satisfies
# λ · (demand(π) + fixed) = η · capacity, where `fixed` is a request's share of what batches cost by
# themselves. Demand is a staircase. Between two steps both prices are used in turn, in the proportion that
# meets the load.
#
# The feedback: η is the share of the capacity that is available. It falls while the mean backlog is above its
# target and rises while it is below.

# -- The cost to go: what a partly run plan is still worth when device time has a price.
#
# For a price π of device time, a price ε of the objective, and a kind of device d:
#
#     J_d(plan) = accuracy(plan)
#     J_d(path) = max_c  J_d(path, c) − π · work_d(path, c) − ε · objective_d(path, c)
#
# The unit of work is one widest plan on that device, so a price means the same on fast and slow devices. The
# unit of the objective (energy or time) is the cluster's mean for one widest plan. If π is the multiplier of
# the fluid programme, following J is optimal in the fluid sense. `rest` is the work left when following J.
#
# Where answers are judged (`sure`), a plan is also worth what may follow it. With the model's own table of
# what a plan q is worth once plan p has answered at level l (`EscalationTable`), and q beginning at the last
# activation that both share:
#
#     J_d(p) = Σ_l share(p, l) · max_q  right(p, l, q) − cost_d(q after p)        q = p: stop, at no cost
#
# A plan that goes on runs in a batch of its own, so it also costs its share of what every batch costs in
# service, as far as that is known (`charge`).

LEAST_PRICE = 0.005
"""Least price of a further plan: what it adds must be more than noise in the table."""

OUT_OF_REACH = -1e3
"""Added to the value of a plan below the accuracy floor: it is only taken when nothing else is left."""


class Further(Struct, frozen=True):
    """What follows an answer: the best plan after each plan with levels, by level; itself means stop.

    `plan` has the shape (kinds, rows of the escalation table, levels). `value` and `work` are what each plan
    is worth with what follows, and how much work follows in the mean: (kinds, rows).
    """

    plan: NDArray[np.int64]
    value: Values
    work: Values


class CostToGo:
    """Tables of J and rest for one model, one for each combination of prices and accuracy floor.

    A table has one row per path, in the order of the model's plan tree. It is made when first asked for.
    """

    def __init__(
        self,
        model: ServedModel,
        work: Sequence[Mapping[Key, float]],
        objective: Sequence[Mapping[Key, float]],
        *,
        sure: bool = False,
    ) -> None:
        self.tree = model.tree
        self.escalation = model.quality.escalation if sure else None
        self._trusts = self.escalation is not None
        self._leaf = model.quality.by_plan
        self.work = _by_row(model, work)  # (kinds, rows): work of the path's last key
        self.objective = _by_row(model, objective)
        self.at = lru_cache(maxsize=512)(self._at)
        self.ahead = lru_cache(maxsize=4096)(self._ahead)
        self.course = lru_cache(maxsize=4096)(self._course)
        self.further = lru_cache(maxsize=512)(self._further)
        self._parent = np.array([self.tree.row[path[:-1]] for path in self.tree.paths])
        if self.escalation is not None:
            plans, kept = self.tree.plans, self.escalation.kept
            pairs = zip(self.escalation.plans, kept, strict=True)
            shared = [[self.tree.row[plans[plan][:k]] for k in row] for plan, row in pairs]
            self._shared = np.array(shared)  # (rows, plans): the last path that two plans share
            self._extra = self._after(self.work)
            self._legs = np.array([len(plan) for plan in plans]) - np.array(kept)  # (rows, plans)
            self.extra = self._extra
            """Work of each plan after each plan with levels: (kinds, rows, plans)."""
            self.total_work = self._totals(self.work)[:, self.tree.leaves]
            """Work of each plan: (kinds, plans)."""

    def trust(self, holds: bool) -> None:
        """Say whether plans are worth what may follow them from now on."""
        self._trusts = holds
        for table in (self.at, self.ahead, self.course):
            table.cache_clear()

    def charge(self, further: Values, *, per_leg: bool) -> None:
        """Let a plan that goes on cost this much more work by kind, for each segment or as a whole."""
        batches = np.where(self._legs > 0, self._legs if per_leg else 1, 0)
        self.extra = self._extra + further[:, None, None] * batches
        for table in (self.at, self.ahead, self.course, self.further):
            table.cache_clear()

    def _at(self, price: float, objective_price: float, floor: float) -> tuple[Values, Values]:
        """Return J and rest, each of shape (rows, kinds)."""
        tree, kinds = self.tree, len(self.work)
        value, rest = np.zeros((kinds, len(tree))), np.zeros((kinds, len(tree)))
        value[:, tree.leaves] = self._leaf
        if self._trusts and self.escalation is not None and price + objective_price > 0.0:
            further, judged = self.further(price, objective_price), tree.leaves[self.escalation.plans]
            value[:, judged], rest[:, judged] = further.value, further.work
        if floor > 0.0:
            below = self._leaf < min(floor, float(self._leaf.max()))
            value[:, tree.leaves] += np.where(below, OUT_OF_REACH, 0.0)
        cost = price * self.work + objective_price * self.objective
        for rows, children in reversed(tree.levels):
            worth = np.where(children < 0, -np.inf, value[:, children] - cost[:, children])
            onward = rest[:, children] + self.work[:, children]
            best = worth.argmax(axis=2)[:, :, None]
            value[:, rows] = np.take_along_axis(worth, best, axis=2)[:, :, 0]
            rest[:, rows] = np.take_along_axis(onward, best, axis=2)[:, :, 0]
        return np.ascontiguousarray(value.T), np.ascontiguousarray(rest.T)

    def _further(self, price: float, objective_price: float) -> Further:
        """Return what to do after the answer of each plan with levels: stop, where device time is free.

        Then requests begin with the widest plan instead of stepping up to it.
        """
        table = self.escalation
        assert table is not None
        if price + objective_price <= 0.0:
            own = np.repeat(np.array(table.plans)[:, None], table.share.shape[1], axis=1)
            leaf, none = self._leaf[table.plans], np.zeros((len(self.work), len(table.plans)))
            return Further(np.broadcast_to(own, (len(self.work), *own.shape)), leaf + none, none)
        cost = max(price, LEAST_PRICE) * self.extra
        if objective_price:
            cost = cost + objective_price * self._after(self.objective)
        rows = np.arange(len(table.plans))
        plan = np.empty((len(cost), *table.share.shape), dtype=np.int64)
        value, work = np.empty((len(cost), len(rows))), np.empty((len(cost), len(rows)))
        for kind, its in enumerate(cost):
            worth = table.right - its[:, None, :]  # (rows, levels, plans)
            plan[kind] = best = worth.argmax(axis=2)
            most = np.take_along_axis(worth, best[:, :, None], axis=2)[:, :, 0]
            value[kind] = (table.share * most).sum(axis=1)
            work[kind] = (table.share * self.extra[kind][rows[:, None], best]).sum(axis=1)
        return Further(plan, value, work)

    def _after(self, cost: Values) -> Values:
        """Return what each plan costs after each plan with levels, of costs (kinds, rows of the tree)."""
        total = self._totals(cost)
        after: Values = total[:, None, self.tree.leaves] - total[:, self._shared]
        return after

    def _totals(self, cost: Values) -> Values:
        """Add up the costs (kinds, rows of the tree) of all steps of each path."""
        total = np.zeros_like(cost)
        for row in range(1, len(self.tree)):
            total[:, row] = total[:, self._parent[row]] + cost[:, row]
        return total

    def _ahead(self, row: int, price: float, objective_price: float, floor: float) -> tuple[Values, Values]:
        """Return each next choice's advantage and the work from there on, each of shape (choices, kinds)."""
        value, rest = self.at(price, objective_price, floor)
        longer = self.tree.children[row]
        work = self.work.T[longer]
        advantage = value[longer] - value[row] - price * work
        if objective_price:
            advantage -= objective_price * self.objective.T[longer]
        return advantage, work + rest[longer]

    def _course(self, path: Path, kind: int, price: float, objective_price: float, floor: float) -> Path:
        """Return the choices for all remaining segments when following J on a device of this kind."""
        value, _ = self.at(price, objective_price, floor)
        cost = price * self.work[kind] + objective_price * self.objective[kind]
        tree, row = self.tree, self.tree.row[path]
        while len(longer := tree.children[row]):
            row = int(longer[(value[longer, kind] - cost[longer]).argmax()])
        return tree.paths[row][len(path) :]


def _by_row(model: ServedModel, costs: Sequence[Mapping[Key, float]]) -> Values:
    """Return the cost of the last key of every path, (kinds, rows)."""
    return np.array([[0.0 if key is None else cost[key] for key in model.row_keys] for cost in costs])


PRICES = np.concatenate([[0.0], np.geomspace(1e-3, 2.0, 60)])
_STEPS: list[float] = PRICES.tolist()
ETA_RANGE = (0.2, 2.0)


def step_above(price: float) -> float:
    """Return the first price of the table, but 0, that is not below this one; the last one if all are."""
    return _STEPS[max(1, bisect_left(_STEPS, price, hi=len(_STEPS) - 1))]


class Pricing:
    """Two neighbouring prices and the share of decisions that take the lower one."""

    def __init__(
        self, costs_to_go: Sequence[CostToGo], capacity_by_kind: Values, *, integral_per_s: float
    ) -> None:
        self._by_kind = capacity_by_kind / capacity_by_kind.sum()
        self._demands = np.zeros((len(costs_to_go), len(PRICES)))  # (models, prices): work per request
        for number, one in enumerate(costs_to_go):
            self.demand_of(number, one)
        self._demand = self._demands[0]
        self.scale = 1.0
        """What the accuracy of the most worthy model is worth: prices must reach that much further."""
        self._integral_per_s = integral_per_s
        self.eta = 0.9
        self.high, self.low, self.low_share = 0.0, 0.0, 0.0
        self._turn = 0.0

    def demand_of(self, model: int, cost_to_go: CostToGo) -> None:
        """Find out how much work a request of a model takes at each price."""
        demand = [float(cost_to_go.at(float(price), 0.0, 0.0)[1][0] @ self._by_kind) for price in PRICES]
        self._demands[model] = np.minimum.accumulate(demand)  # ties between plans may take more at a price

    def mix(self, shares: Values, worths: Values) -> None:
        """Set the models' shares of the requests, and what a point of accuracy is worth in each.

        A model whose accuracy is worth twice as much acts at a price as another does at half that price.
        """
        self.scale = max(1.0, float(worths.max()))
        curves = [
            demand if worth == self.scale else np.interp(PRICES * (self.scale / worth), PRICES, demand)
            for demand, worth in zip(self._demands, worths, strict=True)
        ]
        self._demand = shares @ np.array(curves)

    def update(
        self, *, rate_per_s: float, capacity_per_s: float, error: float, passed_s: float, fixed: float = 0.0
    ) -> None:
        """Set the prices for the current load; `error` is the backlog's relative distance from its target.

        `fixed` is work that each request takes at any price: its share of what batches cost by themselves.
        """
        binding = self.eta * capacity_per_s < rate_per_s * (self._demand[0] + fixed)
        if error > 0.0 or binding or self.eta < 1.0:
            moved = self.eta * exp(-self._integral_per_s * passed_s * max(-1.0, min(3.0, error)))
            self.eta = max(ETA_RANGE[0], min(ETA_RANGE[1], moved))
        each = self.eta * capacity_per_s / max(rate_per_s, 1e-9)  # device time per request, in widest plans
        share = max(0.0, each - fixed)
        at = min(int(np.searchsorted(-self._demand, -share)), len(PRICES) - 1)
        under = max(at - 1, 0)
        gap = self._demand[under] - self._demand[at]
        self.high, self.low = self.scale * float(PRICES[at]), self.scale * float(PRICES[under])
        self.low_share = float(min(1.0, max(0.0, (share - self._demand[at]) / gap))) if gap > 0.0 else 0.0

    @property
    def saturated(self) -> bool:
        """Whether even the narrowest network takes more than there is."""
        return self.low_share <= 0.0 and self.high >= self.scale * PRICES[-1]

    @property
    def free(self) -> bool:
        """Whether backlogs stay below their target at any price, because something else limits the load."""
        return self.eta >= ETA_RANGE[1]

    def next(self) -> float:
        """Return the price for the next decision."""
        self._turn += self.low_share
        if self._turn >= 1.0:
            self._turn -= 1.0
            return self.low
        return self.high


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


def _narrowest_accurate(cluster: Cluster, request: Request) -> int:
    """Return the narrowest choice after which the accuracy asked for can still be reached."""
    served = cluster.models[request.model]
    reach, choices = served.quality.best_reachable, served.tree.after[request.path]
    for choice in choices:
        if reach((*request.path, choice)) >= request.min_accuracy:
            return choice
    return max(choices, key=lambda choice: reach((*request.path, choice)))


def _widest_affordable(cluster: Cluster, server: int, request: Request) -> int:
    """Return the widest choice within the energy limit, counting the least energy of later segments."""
    choices = cluster.models[request.model].tree.after[request.path]
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

_ACCURACY = re.compile(r"accuracy\s*(?:>=|≥)\s*(?P<value>[0-9.]+)\s*%?")
_LIMIT = re.compile(r"(?P<name>\w+)\s*(?:<=|≤)\s*(?P<value>[0-9.]+)\s*(?P<unit>[a-z]+)")
_OBJECTIVE = re.compile(r"(?P<way>min|max)(?:imi[sz]e)?\s+(?P<objective>energy|latency|accuracy)")
_TIME = ({"ms": 1e-3, "s": 1.0}, LONGEST_S, "a time above 0, up to a day")
_LIMITS: dict[str, tuple[str, dict[str, float], float, str]] = {
    "p99": ("p99_s", *_TIME),
    "p95": ("p95_s", *_TIME),
    "mean": ("mean_s", *_TIME),
    "energy": ("energy_j", {"mj": 1e-3, "j": 1.0}, 1e6, "millijoules above 0"),
    "power": ("power_w", {"mw": 1e-3, "w": 1.0, "kw": 1e3}, 1e9, "watts above 0"),
}
"""Name of a limit → its field of `Goal`, its units, the most that it may be, and what to give."""


QUANTILES = {"p99": 0.99, "p95": 0.95}
"""The limits on quantiles: this share of the answers must take no longer than the limit."""


class LatencyLimit(NamedTuple):
    """A limit on one figure of latency: p99, p95 or mean."""

    figure: str
    limit_s: float

    @property
    def text(self) -> str:
        """The clause as a user writes it."""
        return f"{self.figure}<={1e3 * self.limit_s:g}ms"


class StatedLimit(NamedTuple):
    """One limit of a goal: as a user writes it, its model (empty: all of them), its figure and value."""

    text: str
    model: str
    figure: str
    value: float


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
    def limits_energy(self) -> bool:
        """Whether energy or power is limited."""
        return bool(self.energy_j or self.power_w)

    def stated(self, models: Sequence[str] = ("",)) -> list[StatedLimit]:
        """Return the limits in the order in which they yield.

        With several models, each of their own limits stands after the model's name.
        """
        named = [(f"{model}: " if len(models) > 1 else "", model, self.of(model)) for model in models]
        limits = [
            StatedLimit(f"{name}accuracy>={100 * one.min_accuracy:g}", model, "accuracy", one.min_accuracy)
            for name, model, one in named
            if one.min_accuracy
        ]
        if self.energy_j:
            limits.append(StatedLimit(f"energy<={1e3 * self.energy_j:g}mJ", "", "energy", self.energy_j))
        if self.power_w:
            limits.append(StatedLimit(f"power<={self.power_w:g}W", "", "power", self.power_w))
        return limits + [
            StatedLimit(f"{name}{limit.text}", model, limit.figure, limit.limit_s)
            for name, model, one in named
            for limit in one.latency_limits
        ]

    def clauses(self, models: Sequence[str] = ("",)) -> list[str]:
        """Write the limits as a user does, in the order in which they yield."""
        return [limit.text for limit in self.stated(models)]


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
        best, asked = model.quality.best_reachable(()), goal.of(model.name).min_accuracy
        check_measured(model, asked)
        if asked > best:
            raise ConfigError(f"the best plan of {model.name} reaches {100 * best:.2f} %; ask for less")


def check_measured(model: ServedModel, min_accuracy: float) -> None:
    """Refuse a limit on an accuracy that nobody has measured."""
    if min_accuracy and not model.quality.is_measured:
        raise ConfigError(
            f"nobody has measured how accurate the plans of '{model.name}' are, so "
            f"accuracy>={100 * min_accuracy:g} cannot be promised; run slim model evaluate {model.folder} "
            "--data FOLDER, or --agreement, or serve it without: agreement is measured on what comes in"
        )


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
        if match := _LIMIT.fullmatch(clause):
            name, units, most, wanted = _LIMITS[match["name"]]
            value = float(match["value"]) * units[match["unit"]]
            if not 0.0 < value <= most:
                raise ConfigError(f"goal '{text}': '{clause}' cannot be met; give {wanted}")
            return name, value
    except (KeyError, ValueError):
        pass  # no such limit or unit, or a number such as 1.2.3
    raise ConfigError(f"goal '{text}': '{clause}' is not understood; write {SYNTAX}")
