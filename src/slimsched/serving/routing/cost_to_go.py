"""The value of going on: what a prefix of widths is still worth when device time has a price.

For a price π of device time, a price ε of the objective, and a kind of device d

    J_d(w_1..w_4) = accuracy(w)
    J_d(prefix)   = max_w  J_d(prefix, w) − π · work_d(prefix, w) − ε · objective_d(prefix, w)

Work is in units of the whole full-width network on that device, so that prices mean the same on fast and slow
devices; so is the objective (energy or time), in units of the cluster's mean. With π at the multiplier of the
fluid programme, following J is optimal in the fluid sense. `rest` is the work that following J will take.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slimsched.models.accuracy import AccuracyTable
from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.key import KEYS, Key

Values = NDArray[np.float64]
OUT_OF_REACH = -1e3
"""Added to the value of a tuple below the floor: it is only taken when nothing else is left."""

_FIRST = (0, 1, 5, 21, 85, 341)  # row of the first prefix of each length; the last is the number of rows


def _rows() -> dict[tuple[float, ...], int]:
    rows: dict[tuple[float, ...], int] = {(): 0}
    level: list[tuple[float, ...]] = [()]
    for _ in range(SEGMENTS):
        level = [(*prefix, width) for prefix in level for width in WIDTHS]
        rows |= {prefix: len(rows) + number for number, prefix in enumerate(level)}
    return rows


ROW = _rows()
"""Row of every prefix in the tables; the four longer prefixes of one follow each other."""


class CostToGo:
    """J and rest for every prefix, made when first asked for, by prices and accuracy floor."""

    def __init__(
        self,
        accuracy: AccuracyTable,
        work: Sequence[Mapping[Key, float]],
        objective: Sequence[Mapping[Key, float]],
    ) -> None:
        self._leaf = accuracy.by_tuple
        self._work = np.array([_by_prefix(one) for one in work])  # (kinds, prefixes): of the last key
        self._objective = np.array([_by_prefix(one) for one in objective])
        self.at = lru_cache(maxsize=512)(self._at)
        self.course = lru_cache(maxsize=4096)(self._course)

    def _at(self, price: float, objective_price: float, floor: float) -> tuple[Values, Values]:
        """J and rest, each (prefixes, kinds)."""
        kinds, widths = len(self._work), len(WIDTHS)
        value, rest = np.zeros((kinds, _FIRST[-1])), np.zeros((kinds, _FIRST[-1]))
        value[:, _FIRST[SEGMENTS] :] = self._leaf
        if floor > 0.0:
            below = self._leaf < min(floor, float(self._leaf.max()))
            value[:, _FIRST[SEGMENTS] :] += np.where(below, OUT_OF_REACH, 0.0)
        cost = price * self._work + objective_price * self._objective
        for length in reversed(range(SEGMENTS)):
            here = slice(_FIRST[length], _FIRST[length + 1])
            longer = slice(_FIRST[length + 1], _FIRST[length + 2])
            worth = (value[:, longer] - cost[:, longer]).reshape(kinds, -1, widths)
            onward = (rest[:, longer] + self._work[:, longer]).reshape(kinds, -1, widths)
            best = worth.argmax(axis=2)[:, :, None]
            value[:, here] = np.take_along_axis(worth, best, axis=2)[:, :, 0]
            rest[:, here] = np.take_along_axis(onward, best, axis=2)[:, :, 0]
        return np.ascontiguousarray(value.T), np.ascontiguousarray(rest.T)

    def _course(
        self, prefix: tuple[float, ...], kind: int, price: float, objective_price: float, floor: float
    ) -> tuple[float, ...]:
        """The widths that following J gives all segments still to come on a device of this kind."""
        value, _ = self.at(price, objective_price, floor)
        cost = price * self._work[kind] + objective_price * self._objective[kind]
        row, widths = ROW[prefix], list[float]()
        while len(prefix) + len(widths) < SEGMENTS:
            longer = slice(4 * row + 1, 4 * row + 5)
            best = int((value[longer, kind] - cost[longer]).argmax())
            widths.append(WIDTHS[best])
            row = 4 * row + 1 + best
        return tuple(widths)


def _by_prefix(cost: Mapping[Key, float]) -> Values:
    """Cost of the last key of every prefix."""
    found = np.zeros(_FIRST[-1])
    for prefix, row in ROW.items():
        if prefix:
            previous = prefix[-2] if len(prefix) > 1 else None
            found[row] = cost[KEYS[len(prefix) - 1, prefix[-1], previous]]
    return found
