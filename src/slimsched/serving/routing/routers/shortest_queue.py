"""Join the shortest queue: three routers that compare how many requests each server still has to answer.

All three take the widest choice that should meet the deadline on the server they picked.
"""

from random import Random

from slimsched.core.config import PositiveShare
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class JsqRouter:
    """Picks the server with the fewest outstanding requests. It ignores how fast servers are."""

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 0.5) -> None:
        self._estimate = Estimate(cluster)
        self._share = share

    def route(self, seen: Observation) -> Route:
        """Compare the queues of all servers."""
        server = int((seen.outstanding + seen.penalty_s).argmin())
        choice = self._estimate.fitting_choice(seen, server, self._share)
        return Route(server, choice, self._estimate.group, "shortest queue")


class SpeedJsqRouter:
    """Picks the least (outstanding + 1) / speed; speed is the server's throughput at the widest plan."""

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 0.5) -> None:
        self._estimate = Estimate(cluster)
        self._share = share
        self._widest_s = [cluster.plan_s(model, model.spec.widest) for model in cluster.models]

    def route(self, seen: Observation) -> Route:
        """Compare the queues of all servers, each divided by the server's speed."""
        server = int(((seen.outstanding + 1.0) * self._widest_s[seen.model] + seen.penalty_s).argmin())
        choice = self._estimate.fitting_choice(seen, server, self._share)
        return Route(server, choice, self._estimate.group, "shortest queue for its speed")


class PowerOfTwoRouter:
    """Draws two servers at random and picks the one with fewer outstanding requests (Ray Serve's default)."""

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 0.5) -> None:
        self._random = rng.random
        self._estimate = Estimate(cluster)
        self._share = share

    def route(self, seen: Observation) -> Route:
        """Compare the queues of two random servers."""
        alive = seen.alive_ids
        one = alive[int(self._random() * len(alive))]
        two = alive[int(self._random() * len(alive))]
        server = one if seen.outstanding[one] <= seen.outstanding[two] else two
        choice = self._estimate.fitting_choice(seen, server, self._share)
        return Route(server, choice, self._estimate.group, "shorter of two queues")
