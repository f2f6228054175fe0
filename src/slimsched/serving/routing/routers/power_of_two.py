"""Power of two choices: look at two random servers, take the shorter queue (Ray Serve's default)."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class PowerOfTwoRouter:
    """Two random servers, the one with fewer requests outstanding."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._random = rng.random
        self._estimate = Estimate(cluster)

    def route(self, seen: Observation) -> Route:
        """Compare the two queues."""
        alive = seen.alive_ids
        one = alive[int(self._random() * len(alive))]
        two = alive[int(self._random() * len(alive))]
        server = one if seen.outstanding[one] <= seen.outstanding[two] else two
        choice = self._estimate.fitting_choice(seen, server)
        return Route(server, choice, self._estimate.group, "shorter of two queues")
