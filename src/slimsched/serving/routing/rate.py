"""The arrival rate right now: the gateway's mean over a second, followed more closely where many come."""

from math import exp

ARRIVALS = 1000.0
"""So many arrivals give a rate to a few percent: the time they take is how far to look back."""

LEAST_S, MOST_S = 0.1, 1.0

IDLE_S, FRESH_S = 0.2, 0.08
"""After so long a silence what came before says nothing of what comes now: it begins anew, as if nothing had
come for a little while."""


class Rate:
    """A fading mean over the time of a thousand arrivals, at least 0.1 s and at most 1 s."""

    def __init__(self) -> None:
        self._mean_per_s = 0.0  # as the gateway has it: what came, fading over a second
        self._came = 0.0
        self._lasted_s = 0.0  # the same two, fading over the time looked back

    def after(self, mean_per_s: float, passed_s: float) -> float:
        """Take in the gateway's mean after some time has passed; return the rate."""
        came = max(0.0, mean_per_s - self._mean_per_s * exp(-passed_s))
        self._mean_per_s = mean_per_s
        if passed_s > IDLE_S:
            self._came, self._lasted_s, passed_s = 0.0, 0.0, FRESH_S
        back_s = min(MOST_S, max(LEAST_S, ARRIVALS / max(mean_per_s, 1e-9)))
        kept = exp(-passed_s / back_s)
        self._came = self._came * kept + came
        self._lasted_s = self._lasted_s * kept + (passed_s or LEAST_S / 5)
        return self._came / self._lasted_s
