"""Curves of the fluid bound: over arrival rates, solved once and then interpolated, and over energy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum
from slimsched.serving.routing.sure_bound import sure_accuracy_at

POINTS, SURE_POINTS = 32, 12
BUDGETS = 16


class BoundCurve:
    """Correct answers per second by arrival rate. The curve is concave, so interpolation is just below it."""

    def __init__(self, cluster: Cluster, shares: Sequence[float] = ()) -> None:
        most = max(capacity_per_s(cluster, model.spec.narrowest, model.number) for model in cluster.models)
        least = min(capacity_per_s(cluster, model.spec.widest, model.number) for model in cluster.models)
        self._rate_per_s: NDArray[np.float64] = np.geomspace(0.5 * least, 1.05 * most, POINTS)
        self._correct_per_s = np.array(
            [
                rate * fluid_optimum(cluster, float(rate), shares=shares or None).accuracy
                for rate in self._rate_per_s
            ]
        )

        self._sure_rate_per_s = np.geomspace(0.5 * least, 1.05 * most, SURE_POINTS)
        self._sure_per_s = np.array(
            [rate * sure_accuracy_at(cluster, float(rate), shares) for rate in self._sure_rate_per_s]
        )

    def accuracy(self, rate_per_s: float) -> float:
        """Return the best accuracy any router could reach; requests that cannot be served count as wrong."""
        return _at(rate_per_s, self._rate_per_s, self._correct_per_s)

    def sure_accuracy(self, rate_per_s: float) -> float:
        """Return the same for routers that stop when sure; 0 if no model says how sure it is."""
        return _at(rate_per_s, self._sure_rate_per_s, self._sure_per_s)


def _at(rate_per_s: float, rates_per_s: NDArray[np.float64], correct_per_s: NDArray[np.float64]) -> float:
    if rate_per_s <= rates_per_s[0]:
        return float(correct_per_s[0] / rates_per_s[0])
    return float(np.interp(rate_per_s, rates_per_s, correct_per_s)) / rate_per_s


def energy_bound(
    cluster: Cluster, rate_per_s: float, shares: Sequence[float] = ()
) -> dict[str, NDArray[np.float64]]:
    """Return the best accuracy by energy above idle, both per arrived request, as arrays for a run folder."""
    free = fluid_optimum(cluster, rate_per_s, shares=shares or None)
    budgets_w = np.linspace(0.0, free.power_w, BUDGETS)
    best = [
        fluid_optimum(cluster, rate_per_s, shares=shares or None, active_power_w=float(power)).accuracy
        for power in budgets_w
    ]
    return {"bound/energy_j": budgets_w / rate_per_s, "bound/accuracy": np.array(best)}
