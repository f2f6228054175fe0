"""The current arrival rate: a mean over one second, or over less when many requests arrive."""

from math import exp, inf

ARRIVALS = 1000.0
"""This many arrivals give the rate to within a few percent. The rate looks back over the time they take."""

LEAST_S, MOST_S = 0.1, 1.0

IDLE_S, FRESH_S = 0.2, 0.08
"""After `IDLE_S` without news the old rate says nothing about the new one. Counting starts again, as if
nothing had arrived for `FRESH_S`."""

PLANS = 2.0
"""Nor for less than the cluster takes for this many widest plans: else a single request to a slow model
would look like too many."""


class Rate:
    """A fading mean over the time that a thousand arrivals take, at least 0.1 s and at most 1 s."""

    def __init__(self) -> None:
        self._mean_per_s = 0.0  # the gateway's own: arrivals, fading over one second
        self._came = 0.0
        self._lasted_s = 0.0  # arrivals and time passed, fading over the time looked back

    def after(self, mean_per_s: float, passed_s: float, capacity_per_s: float = inf) -> float:
        """Update with the gateway's mean after `passed_s`; return the rate.

        `capacity_per_s` is how many widest plans the cluster can run.
        """
        least_s = PLANS / capacity_per_s
        came = max(0.0, mean_per_s - self._mean_per_s * exp(-passed_s))
        self._mean_per_s = mean_per_s
        if passed_s > IDLE_S:
            self._came, self._lasted_s, passed_s = 0.0, 0.0, max(FRESH_S, least_s)
        back_s = min(MOST_S, max(LEAST_S, ARRIVALS / max(mean_per_s, 1e-9)))
        kept = exp(-passed_s / back_s)
        self._came = self._came * kept + came
        self._lasted_s = self._lasted_s * kept + (passed_s or max(LEAST_S / 5, least_s))
        return self._came / self._lasted_s
