"""Speed-aware join the shortest queue: queue length over speed."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class SpeedJsqRouter:
    """Minimises (outstanding + 1) / speed, speed being the server's throughput at full width."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._estimate = Estimate(cluster)
        whole = [KEYS[segment, 1.0, 1.0 if segment else None] for segment in range(4)]
        self._image_s = sum(cluster.work_s[key] for key in whole)

    def route(self, seen: Observation) -> Route:
        """Compare scaled queues."""
        server = int(((seen.outstanding + 1.0) * self._image_s + seen.penalty_s).argmin())
        width = self._estimate.fitting_width(seen, server)
        return Route(server, width, self._estimate.group, "shortest queue for its speed")
