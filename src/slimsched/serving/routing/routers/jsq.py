"""Join the shortest queue, counted in requests; blind to speed."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class JsqRouter:
    """The server with the fewest requests outstanding, the widest choice that should be in time there."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._estimate = Estimate(cluster)

    def route(self, seen: Observation) -> Route:
        """Compare queue lengths."""
        server = int((seen.outstanding + seen.penalty_s).argmin())
        choice = self._estimate.fitting_choice(seen, server)
        return Route(server, choice, self._estimate.group, "shortest queue")
