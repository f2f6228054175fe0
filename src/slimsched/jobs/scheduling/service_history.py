"""What finished jobs took, to guess what is left of a job that has had some service already."""

from bisect import bisect_left
from typing import Final

FIRST_S: Final = 1.0
GROWTH: Final = 1.25
CLASSES: Final = 64
DEFAULT_S: Final = 3600.0
ENOUGH: Final = 8.0
FORGETTING: Final = 0.9995


class ServiceHistory:
    """A histogram of service times in geometric classes, older jobs fading away."""

    def __init__(self) -> None:
        self._bounds_s = [FIRST_S * GROWTH**i for i in range(CLASSES)]
        self._counts = [0.0] * (CLASSES + 1)
        self._sums_s = [0.0] * (CLASSES + 1)
        self._weight = 1.0
        self._residual_s: list[float | None] = [None] * (CLASSES + 1)
        self._stale = 0

    def add(self, service_s: float) -> None:
        """Remember a finished job; the weight of a new one grows instead of the old ones' shrinking."""
        self._weight /= FORGETTING
        i = bisect_left(self._bounds_s, service_s)
        self._counts[i] = self._counts[i] + self._weight
        self._sums_s[i] = self._sums_s[i] + self._weight * service_s
        self._stale += 1
        if self._stale >= 16:
            self._stale = 0
            self._residual_s = [None] * (CLASSES + 1)
            if self._weight > 1e6:
                self._counts = [count / self._weight for count in self._counts]
                self._sums_s = [total / self._weight for total in self._sums_s]
                self._weight = 1.0

    def residual_s(self, served_s: float) -> float:
        """Return the mean service still to come for a job that has had `served_s`."""
        i = bisect_left(self._bounds_s, served_s)
        mean_s = self._residual_s[i]
        if mean_s is None:
            count = sum(self._counts[i:])
            mean_s = -1.0 if count < ENOUGH * self._weight else sum(self._sums_s[i:]) / count
            self._residual_s[i] = mean_s
        if mean_s < 0.0:
            return max(served_s, DEFAULT_S)
        return max(mean_s - served_s, FIRST_S)
