"""The cost to go: what a partly run plan is still worth when device time has a price.

For a price π of device time, a price ε of the objective, and a kind of device d:

    J_d(plan) = accuracy(plan)
    J_d(path) = max_c  J_d(path, c) − π · work_d(path, c) − ε · objective_d(path, c)

The unit of work is one widest plan on that device, so a price means the same on fast and slow devices. The
unit of the objective (energy or time) is the cluster's mean for one widest plan. If π is the multiplier of
the fluid programme, following J is optimal in the fluid sense. `rest` is the work left when following J.

Where answers are judged (`sure`), a plan is also worth what may follow it. With the model's own table of what
a plan q is worth once plan p has answered at level l (`escalation_table.py`), and q beginning at the last
activation that both share:

    J_d(p) = Σ_l share(p, l) · max_q  right(p, l, q) − cost_d(q after p)        q = p: stop, at no cost

A plan that goes on runs in a batch of its own, so it also costs its share of what every batch costs in
service, as far as that is known (`charge`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key

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
