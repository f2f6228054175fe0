"""Drift plus penalty (Neely): trade queue growth against accuracy lost."""

from random import Random

import numpy as np

from slimsched.models.width import WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class DriftPlusPenaltyRouter:
    """Minimises Q_i · work_i(w) + move_i − V · accuracy(w) over servers and widths.

    Q_i is the backlog of server i in seconds, work_i(w) the head's service there in units of the mean
    full-width service, move_i the time its inputs take to get there, accuracy(w) what a request can expect
    after this width; V (seconds a unit of accuracy) sets how much queue a point of accuracy is worth.
    """

    def __init__(self, cluster: Cluster, rng: Random, v: float = 2.0) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._v = v
        self._work = {
            (segment, previous): np.array(
                [
                    cluster.work_s[KEYS[segment, width, previous]]
                    / cluster.work_s[KEYS[segment, 1.0, previous]].mean()
                    for width in WIDTHS
                ]
            )  # (widths, servers)
            for segment in range(4)
            for previous in (WIDTHS if segment else (None,))
        }

    def route(self, seen: Observation) -> Route:
        """Score every (width, server) at once."""
        expected = self._cluster.accuracy.expected
        gain = np.array([expected((*seen.widths, width)) for width in WIDTHS])
        work = self._work[seen.segment, seen.previous]
        score = seen.backlog_s * work + self._estimate.move_s(seen) - self._v * gain[:, None]
        width, server = divmod(int(score.argmin()), len(self._cluster))
        return Route(server, WIDTHS[width], self._estimate.group, "least drift plus penalty")
