"""Prices of device time: what the load makes a second of a device worth, and what plans are worth at that
price.

The price of device time: from the fluid programme for the current load, corrected by the backlog.

The plan: the unit of device time is one widest plan. At price π a request takes demand(π) units, and the
cluster has capacity = Σ_i 1 / full_i units per second, so the price satisfies
λ · (demand(π) + fixed) = η · capacity, where `fixed` is a request's share of what batches cost by themselves.
Demand is a staircase. Between two steps both prices are used in turn, in the proportion that meets the load.

The feedback: η is the share of the capacity that is available. It falls while the mean backlog is above its
target and rises while it is below.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key

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
# what
# a plan q is worth once plan p has answered at level l (`escalation_table.py`), and q beginning at the last
# activation that both share:
#
#     J_d(p) = Σ_l share(p, l) · max_q  right(p, l, q) − cost_d(q after p)        q = p: stop, at no cost
#
# A plan that goes on runs in a batch of its own, so it also costs its share of what every batch costs in
# service, as far as that is known (`charge`).

Values = NDArray[np.float64]
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
        self.work = np.array(
            [_by_row(model, one) for one in work]
        )  # (kinds, rows): work of the path's last key
        self.objective = np.array([_by_row(model, one) for one in objective])
        self.at = lru_cache(maxsize=512)(self._at)
        self.ahead = lru_cache(maxsize=4096)(self._ahead)
        self.course = lru_cache(maxsize=4096)(self._course)
        self.further = lru_cache(maxsize=512)(self._further)
        self._parent = np.array([self.tree.row[path[:-1]] for path in self.tree.paths])
        if self.escalation is not None:
            plans, kept = self.tree.plans, self.escalation.kept
            self._shared = np.array(
                [
                    [self.tree.row[plans[p][:k]] for k in row]
                    for p, row in zip(self.escalation.plans, kept, strict=True)
                ]
            )  # (rows, plans): the last path that two plans share
            self._extra = self._after(self.work)
            self._legs = np.array([len(plan) for plan in plans]) - np.array(kept)  # (rows, plans)
            self.extra = self._extra
            """Work of each plan after each plan with levels: (kinds, rows, plans)."""
            self.total_work = self._totals(self.work)[:, self.tree.leaves]
            """Work of each plan: (kinds, plans)."""

    @property
    def trusts(self) -> bool:
        """Whether plans are worth what may follow them."""
        return self._trusts

    @trusts.setter
    def trusts(self, trusts: bool) -> None:
        self._trusts = trusts
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

        Whoever has the time begins with the widest plan, and has its answer sooner.
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


def _by_row(model: ServedModel, cost: Mapping[Key, float]) -> Values:
    """Return the cost of the last key of every path."""
    return np.array([0.0 if key is None else cost[key] for key in model.row_keys])


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
