"""What a router can tell of its own success while it routes: mean accuracy and the tail of latency.

At the last segment the whole width tuple is known and so is the age of the request; what is still to come is
taken to be as long as the time between the last two routings was.
"""

from math import exp

WINDOW_S = 2.0
"""Time over which the mean accuracy is taken."""

TAIL = 0.01
QUANTILE_STEP = 0.04
"""How far (in logarithm) one sample moves the estimate of the 99th percentile."""


class GoalMeter:
    """Exponential averages of what was sent into its last segment."""

    def __init__(self) -> None:
        self.accuracy: float | None = None
        self.p99_s: float | None = None
        self._weight = 0.0
        self._last_s = 0.0
        self._age_s = [0.0, 0.0]  # mean age when routed to the last segment but one, and to the last

    def note(self, segment: int, age_s: float, now_s: float, count: int, accuracy: float) -> None:
        """A block goes out to one of the last two segments; `accuracy` counts for the last."""
        mean = self._age_s[segment - 2]
        self._age_s[segment - 2] = age_s if mean == 0.0 else mean + 0.02 * (age_s - mean)
        if segment < 3:
            return
        fade = exp(-(now_s - self._last_s) / WINDOW_S)
        self._last_s = now_s
        kept = self._weight * fade
        self._weight = kept + count
        self.accuracy = ((self.accuracy or 0.0) * kept + accuracy * count) / self._weight
        latency_s = age_s + max(0.0, self._age_s[1] - self._age_s[0])
        if self.p99_s is None:
            self.p99_s = latency_s
        else:
            self.p99_s *= exp(QUANTILE_STEP * ((latency_s > self.p99_s) - TAIL))
