"""The goal meter: a router's own estimate of its mean accuracy and its latency while it routes.

When a request is routed to its last segment, its whole plan and its age are known. The last segment is
expected to take as long as the time between the last two routings.
"""

from math import exp, log

import numpy as np

WINDOW_S = 2.0
"""Time over which means are taken; older figures fade."""

LONGEST_STEP_S = 10.0
"""A longer silence counts as this long: everything has settled by then, and exponents stay finite."""

TAIL_WINDOW_S = 1.0
"""The p99 covers this window and the one before, so that old latencies are soon forgotten."""

QUANTILES = {"p99": 0.99, "p95": 0.95}
LEAST_S, STEP = 1e-3, 0.02
AGES_S = LEAST_S * np.exp(STEP * np.arange(600))
"""Ages are counted in steps of 2 %, from 1 ms to 160 s."""


class GoalMeter:
    """Fading means, and a histogram of ages, of the requests sent into the last two segments."""

    def __init__(self) -> None:
        self._accuracy = 0.0
        self._age_s = [0.0, 0.0]  # sum of ages when routed to the last segment but one, and to the last
        self._weight = [0.0, 0.0]
        self._ages = np.zeros((2, len(AGES_S)))  # this window and the one before
        self._window_s = 0.0

    @property
    def accuracy(self) -> float | None:
        """Expected mean accuracy of the requests sent into their last segment."""
        return self._accuracy / self._weight[1] if self._weight[1] else None

    @property
    def p99_s(self) -> float | None:
        """99th percentile of latency."""
        return self.latency_s("p99")

    def latency_s(self, figure: str) -> float | None:
        """Return a figure of latency: p99, p95 or mean; None while nothing is known."""
        if not self._weight[1] or not self._weight[0] or not self._age_s[1]:
            return None
        before, last = (age / weight for age, weight in zip(self._age_s, self._weight, strict=True))
        rest = max(1.0, 2.0 - before / last)
        if figure == "mean":
            return last * rest
        below = self._ages.sum(axis=0).cumsum()
        place = int(np.searchsorted(below, QUANTILES[figure] * below[-1]))
        return float(AGES_S[min(place, len(AGES_S) - 1)]) * rest

    def note(self, age_s: float, count: int, accuracy: float, *, last: bool) -> None:
        """Note a block sent to one of the last two segments; accuracy only counts for the last."""
        which = int(last)
        self._weight[which] += count
        self._age_s[which] += count * age_s
        if which:
            self._accuracy += count * accuracy
            step = int(log(max(age_s, LEAST_S) / LEAST_S) / STEP)
            self._ages[0, min(step, len(AGES_S) - 1)] += count

    def fade(self, passed_s: float) -> None:
        """Let time pass."""
        kept = exp(-passed_s / WINDOW_S)
        self._accuracy *= kept
        self._weight = [kept * weight for weight in self._weight]
        self._age_s = [kept * age_s for age_s in self._age_s]
        self._window_s += passed_s
        if self._window_s >= TAIL_WINDOW_S and self._ages[0].any():
            self._window_s = 0.0
            self._ages[1], self._ages[0] = self._ages[0], 0.0
