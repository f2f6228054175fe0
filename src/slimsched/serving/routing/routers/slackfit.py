"""SlackFit, after SuperServe: the (width, batch) whose latency lies just under the slack that is left."""

from random import Random

from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route
from slimsched.serving.routing.routers.random import group_sizes


class SlackFitRouter:
    """Latency buckets over (width, group) for each segment and server; the fullest bucket that fits wins.

    SuperServe schedules whole networks on equal GPUs; here the slack is shared equally by the segments
    that remain, and the server is the one where the head can start first.
    """

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._groups = group_sizes(cluster.batch_limit)
        self._buckets: dict[tuple[int, float | None, str], list[tuple[float, float, int]]] = {}

    def route(self, seen: Observation) -> Route:
        """Take the bucket just under the slack; the narrowest, fullest one when none fits."""
        wait_s = self._estimate.wait_s(seen)
        server = int(wait_s.argmin())
        share_s = (seen.deadline_s - seen.now_s) / (SEGMENTS - seen.segment)
        slack_s = share_s - float(wait_s[server]) - 2 * float(self._estimate.hop_s[server])
        for latency_s, width, group in self._sorted(seen.segment, seen.previous, server):
            if latency_s <= slack_s:
                return Route(server, width, group, "bucket just under the slack")
        return Route(server, WIDTHS[0], self._groups[-1], "no slack: narrowest")

    def _sorted(self, segment: int, previous: float | None, server: int) -> list[tuple[float, float, int]]:
        """(latency, width, group) from the slowest bucket down; in a bucket the wider first."""
        profile = self._cluster.profiles[server]
        found = self._buckets.get((segment, previous, profile.name))
        if found is None:
            found = sorted(
                (
                    (profile.latency_s(KEYS[segment, width, previous], group), width, group)
                    for width in WIDTHS
                    for group in self._groups
                ),
                reverse=True,
            )
            self._buckets[segment, previous, profile.name] = found
        return found
