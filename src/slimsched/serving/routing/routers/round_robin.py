"""Round robin: servers in turn, choices in turn."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class RoundRobinRouter:
    """Gives all servers equal shares, whatever their speed; the choice changes after each full turn."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._group = cluster.batch_limit
        self._turn = 0

    def route(self, seen: Observation) -> Route:
        """Return the next server in turn."""
        alive, choices = seen.alive_ids, seen.choices
        self._turn += not seen.is_decided  # the rest of a plan belongs to the same turn
        turn = max(0, self._turn - 1)
        choice = choices[(turn // len(alive)) % len(choices)]
        return Route(alive[turn % len(alive)], choice, self._group, "next in turn")
