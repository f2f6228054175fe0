"""What a router can expect of a choice: waiting, moving and running, from profiles and its own count."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.routing.observation import Observation

Values = NDArray[np.float64]


class Estimate:
    """Expected times over the servers, all as vectors so that cost barely grows with their number."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.group = cluster.batch_limit
        self.hop_s = np.array([cluster.gateway_link.latency_s + link.latency_s for link in cluster.links])
        """Time a message takes between the gateway and each server."""
        hops_s, runs_s = 2 * SEGMENTS * self.hop_s, self._rest_s(0, None, 0.5)
        self.empty_s = float(np.median(hops_s) + np.median(runs_s))
        """About the latency of a request when nobody else is there."""
        self.run_s = lru_cache(maxsize=None)(self._run_s)
        self.rest_s = lru_cache(maxsize=None)(self._rest_s)

    def move_s(self, seen: Observation) -> Values:
        """Time a block of the head takes to each server; infinite to the dead."""
        count = min(seen.count, self.group)
        return self.cluster.move_s(seen.segment, seen.previous, seen.source, count) + seen.penalty_s

    def wait_s(self, seen: Observation) -> Values:
        """Time until a block of the head could start on each server: the move, then the backlog."""
        return seen.backlog_s + self.move_s(seen)

    def fitting_width(self, seen: Observation, server: int, share: float = 0.5) -> float:
        """The widest width with which all remaining segments should end within a share of the slack.

        Each remaining segment is expected to wait for one backlog and two messages and to run as a batch.
        """
        slack_s = share * (seen.deadline_s - seen.now_s)
        rest = SEGMENTS - seen.segment
        waits_s = rest * (float(seen.backlog_s[server]) + 2 * float(self.hop_s[server]))
        for width in reversed(WIDTHS):
            if waits_s + self.rest_s(seen.segment, seen.previous, width)[server] <= slack_s:
                return width
        return WIDTHS[0]

    def _run_s(self, segment: int, previous: float | None, width: float) -> Values:
        """Time of a full batch of one segment alone on each server."""
        key = KEYS[segment, width, previous]
        return np.array([p.latency_s(key, self.group) for p in self.cluster.profiles])

    def _rest_s(self, segment: int, previous: float | None, width: float) -> Values:
        """Time of full batches of this and all later segments at one width, on each server."""
        total: Values = self._run_s(segment, previous, width)
        for later in range(segment + 1, SEGMENTS):
            total = total + self._run_s(later, width, width)
        return total
