"""Speed-aware join the shortest queue: queue length over speed."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class SpeedJsqRouter:
    """Minimises (outstanding + 1) / speed, speed being the server's throughput at the widest plan."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._estimate = Estimate(cluster)
        self._widest_s = [cluster.plan_s(model, model.spec.widest) for model in cluster.models]

    def route(self, seen: Observation) -> Route:
        """Compare scaled queues."""
        server = int(((seen.outstanding + 1.0) * self._widest_s[seen.model] + seen.penalty_s).argmin())
        choice = self._estimate.fitting_choice(seen, server)
        return Route(server, choice, self._estimate.group, "shortest queue for its speed")
