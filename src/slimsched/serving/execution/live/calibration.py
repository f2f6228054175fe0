"""Measures what serving costs beyond the profiles, by observing a live run.

A profile is measured one key at a time on an otherwise idle core. In service, a batch shares its core with
messages, other servers and other programs, and its caches are cold.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.profile import ALONE, PACE_S, ServiceCost
from slimsched.serving.gateway.messages import SegmentFinished

ENOUGH = 30
"""Batches that a server must have run before its cost is estimated."""


class Calibration:
    """Collects each server's batch times and the times that its profile predicts."""

    def __init__(self, cluster: Cluster) -> None:
        self._profiles = cluster.profiles
        self._batches: list[list[tuple[float, float, float]]] = [[] for _ in cluster.names]

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Record a finished batch."""
        if isinstance(event, SegmentFinished):
            alone_s = self._profiles[event.server].latency_s(event.key, event.size)
            self._batches[event.server].append((now_s - event.busy_s, alone_s, event.busy_s))

    def costs(self) -> tuple[ServiceCost, ...]:
        """Estimate overhead, slowdown and pace of each server by least squares over its batches.

        The model is busy = overhead_s + slowdown × profile, with a slowdown of at least 1. If the overhead
        would be negative, only a slowdown is fitted, which may then be below 1.
        """
        return tuple(_fit(np.array(rows)) if len(rows) >= ENOUGH else ALONE for rows in self._batches)


def _fit(rows: NDArray[np.float64]) -> ServiceCost:
    began_s, alone_s, busy_s = rows.T
    slowdown = max(1.0, float(np.polyfit(alone_s, busy_s, 1)[0]))
    overhead_s = float(np.mean(busy_s - slowdown * alone_s))
    if overhead_s < 0.0:
        overhead_s, slowdown = 0.0, float(busy_s.sum() / alone_s.sum())
    pace = _pace(began_s, busy_s, overhead_s + slowdown * alone_s)
    return ServiceCost(slowdown=slowdown, overhead_s=overhead_s, pace=pace)


def _pace(
    began_s: NDArray[np.float64], busy_s: NDArray[np.float64], usual_s: NDArray[np.float64]
) -> tuple[float, ...]:
    """How much longer than usual batches took, over time; 1 for periods without batches."""
    bins = (began_s / PACE_S).astype(int)
    bins -= bins.min()
    took_s, expected_s = np.bincount(bins, busy_s), np.bincount(bins, usual_s)
    ratio = np.divide(took_s, expected_s, out=np.ones(len(took_s)), where=expected_s > 0.0)
    return tuple(round(float(one), 4) for one in ratio)
