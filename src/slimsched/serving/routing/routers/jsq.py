"""Join the shortest queue, counted in requests; blind to speed."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class JsqRouter:
    """The server with the fewest requests outstanding, the widest width that should be in time there."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._estimate = Estimate(cluster)

    def route(self, seen: Observation) -> Route:
        """Compare queue lengths."""
        server = int((seen.outstanding + seen.penalty_s).argmin())
        width = self._estimate.fitting_width(seen, server)
        return Route(server, width, self._estimate.group, "shortest queue")
