"""SlackFit, after SuperServe: takes the (choice, batch) whose latency is just below the remaining slack."""

from random import Random

from slimsched.core.config import PositiveShare
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route
from slimsched.serving.routing.routers.random import group_sizes


class SlackFitRouter:
    """Sorts (choice, group) by latency for each segment and server, and takes the slowest that fits.

    SuperServe schedules whole models on equal GPUs. Here the remaining segments share the slack equally, and
    the head goes to the server where it can start first.
    """

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 1.0) -> None:
        self._share = share
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._groups = group_sizes(cluster.batch_limit)
        self._buckets: dict[tuple[int, Path, str], list[tuple[float, int, int]]] = {}

    def route(self, seen: Observation) -> Route:
        """Take the slowest bucket within the slack; else the narrowest choice in the largest group."""
        wait_s = self._estimate.wait_s(seen)
        server = int(wait_s.argmin())
        share_s = (
            self._share
            * (seen.deadline_s - seen.now_s)
            / (self._cluster.models[seen.model].segments - seen.segment)
        )
        slack_s = share_s - float(wait_s[server]) - 2 * float(self._estimate.hop_s[server])
        buckets = self._sorted(seen.model, seen.path, server)
        for latency_s, choice, group in buckets:
            if latency_s <= slack_s:
                return Route(server, choice, group, "bucket just under the slack")
        narrowest = min(choice for _, choice, _ in buckets)
        return Route(server, narrowest, self._groups[-1], "no slack: narrowest")

    def _sorted(self, model: int, path: Path, server: int) -> list[tuple[float, int, int]]:
        """List (latency, choice, group), slowest first; at equal latency the wider choice comes first."""
        profile, served = self._cluster.profiles[server], self._cluster.models[model]
        buckets = self._buckets.get((model, path, profile.name))
        if buckets is None:
            choices = served.tree.choices[served.tree.row[path]]
            buckets = sorted(
                (
                    (profile.latency_s(served.key_of_path((*path, int(choice))), group), int(choice), group)
                    for choice in choices
                    for group in self._groups
                ),
                reverse=True,
            )
            self._buckets[model, path, profile.name] = buckets
        return buckets
