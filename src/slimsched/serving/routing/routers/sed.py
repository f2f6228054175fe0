"""Shortest expected delay: backlog plus move plus run, in seconds."""

from random import Random

from slimsched.core.config import PositiveShare
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class SedRouter:
    """Picks the server that should finish the head first, and the widest choice that is in time there.

    In time means within `share` of what is left until the deadline.
    """

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 0.5) -> None:
        self._estimate = Estimate(cluster)
        self._share = share

    def route(self, seen: Observation) -> Route:
        """Compare when each server should finish."""
        estimate = self._estimate
        end_s = estimate.wait_s(seen) + estimate.widest_s(seen)
        server = int(end_s.argmin())
        choice = estimate.fitting_choice(seen, server, self._share)
        return Route(server, choice, estimate.group, "shortest expected delay")
