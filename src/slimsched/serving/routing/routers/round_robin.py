"""Round robin: servers in turn, widths in turn."""

from random import Random

from slimsched.models.width import WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class RoundRobinRouter:
    """Equal shares for all, whatever their speed; the width changes after each full turn."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._group = cluster.batch_limit
        self._turn = 0

    def route(self, seen: Observation) -> Route:
        """Take the next server."""
        alive = seen.alive_ids
        turn, self._turn = self._turn, self._turn + 1
        width = WIDTHS[(turn // len(alive)) % len(WIDTHS)]
        return Route(alive[turn % len(alive)], width, self._group, "next in turn")
