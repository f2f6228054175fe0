"""Curves of the fluid bound: over arrival rates, solved once and then interpolated, and over energy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum

POINTS = 64
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

    def accuracy(self, rate_per_s: float) -> float:
        """Return the best accuracy any router could reach; requests that cannot be served count as wrong."""
        if rate_per_s <= self._rate_per_s[0]:
            return float(self._correct_per_s[0] / self._rate_per_s[0])
        return float(np.interp(rate_per_s, self._rate_per_s, self._correct_per_s)) / rate_per_s


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
