"""Means over seeds with their confidence intervals, means that forget, and how values are spread."""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Mean(NamedTuple):
    """A mean, and half the width of its 95 % interval (Student's t); 0 if there is only one value."""

    value: float
    ci95: float


def mean_of(values: Sequence[float]) -> Mean:
    """Average one figure over seeds."""
    from scipy.special import stdtrit  # the quantile of Student's t; scipy takes long to import

    numbers, count = np.asarray(values, dtype=float), len(values)
    if count < 2:
        return Mean(float(numbers.mean()), 0.0)
    half_width = stdtrit(count - 1, 0.975) * numbers.std(ddof=1) / sqrt(count)
    return Mean(float(numbers.mean()), float(half_width))


class Fading:
    """The sum of some values over the sum of their weights, where older ones count less and less.

    With a `share`, each note takes this share off all that was noted before: the mean follows about the last
    1 / share values. Without, `fade(exp(-passed_s / memory_s))` lets time pass: the mean follows about the
    last `memory_s` seconds.
    """

    __slots__ = ("_kept", "total", "weight")

    def __init__(self, mean: float = 0.0, weight: float = 0.0, *, share: float = 0.0) -> None:
        """Begin as if `mean` had been noted with `weight`; 1 / share is the most weight there can be."""
        self.total, self.weight = mean * weight, weight
        self._kept = 1.0 - share

    @property
    def mean(self) -> float:
        """The mean; 0 while nothing is known."""
        return self.total / self.weight if self.weight else 0.0

    def note(self, total: float, weight: float = 1.0) -> None:
        """Note one value, or values that add up to `total` and have this weight."""
        self.total = self.total * self._kept + total
        self.weight = self.weight * self._kept + weight

    def fade(self, kept: float) -> None:
        """Let all that was noted count `kept` times as much from now on."""
        self.total *= kept
        self.weight *= kept


def follow(mean: float, share: float) -> Fading:
    """Return a mean that begins at `mean` and goes this share of the way to each value that is noted."""
    return Fading(mean, 1.0 / share, share=share)


LEAST, STEP, STEPS = 1e-5, 0.02, 1024
"""Values are counted in steps of this ratio from the least one on, up to 7,800."""


class Spread:
    """How often values occurred, in steps of two per cent: its size does not grow with their number."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(STEPS, dtype=np.int64)
        """How many values fell into each step."""

    def add(self, value: float, count: int) -> int:
        """Add a value several times; return its step, so that it can be taken out of `counts` again."""
        step = min(STEPS - 1, max(0, int(log(max(value, LEAST) / LEAST) / STEP)))
        self.counts[step] += count
        return step

    def quantiles(self, *shares: float, beside: "Spread | None" = None) -> tuple[float, ...]:
        """Return these quantiles, of this and another spread together, within one per cent; none if empty."""
        below = np.cumsum(self.counts if beside is None else self.counts + beside.counts)
        if not (total := int(below[-1])):
            return ()
        steps = np.searchsorted(below, [share * (total - 1) for share in shares], side="right")
        return tuple((LEAST * np.exp((steps + 0.5) * STEP)).tolist())
