"""The cost to go: what a partly run plan is still worth when device time has a price.

For a price π of device time, a price ε of the objective, and a kind of device d:

    J_d(plan) = accuracy(plan)
    J_d(path) = max_c  J_d(path, c) − π · work_d(path, c) − ε · objective_d(path, c)

The unit of work is one widest plan on that device, so a price means the same on fast and slow devices. The
unit of the objective (energy or time) is the cluster's mean for one widest plan. If π is the multiplier of
the fluid programme, following J is optimal in the fluid sense. `rest` is the work left when following J.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.served_model import ServedModel

Values = NDArray[np.float64]
OUT_OF_REACH = -1e3
"""Added to the value of a plan below the accuracy floor: it is only taken when nothing else is left."""


class CostToGo:
    """Tables of J and rest for one model, one for each combination of prices and accuracy floor.

    A table has one row per path, in the order of the model's plan tree. It is made when first asked for.
    """

    def __init__(
        self,
        model: ServedModel,
        work: Sequence[Mapping[Key, float]],
        objective: Sequence[Mapping[Key, float]],
    ) -> None:
        self.tree = model.tree
        self._leaf = model.quality.by_plan
        self.work = np.array(
            [_by_row(model, one) for one in work]
        )  # (kinds, rows): work of the path's last key
        self.objective = np.array([_by_row(model, one) for one in objective])
        self.at = lru_cache(maxsize=512)(self._at)
        self.ahead = lru_cache(maxsize=4096)(self._ahead)
        self.course = lru_cache(maxsize=4096)(self._course)

    def _at(self, price: float, objective_price: float, floor: float) -> tuple[Values, Values]:
        """Return J and rest, each of shape (rows, kinds)."""
        tree, kinds = self.tree, len(self.work)
        value, rest = np.zeros((kinds, len(tree))), np.zeros((kinds, len(tree)))
        value[:, tree.leaves] = self._leaf
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
