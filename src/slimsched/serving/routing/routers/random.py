"""Uniform random routing: the paper's baseline."""

from random import Random

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


def group_sizes(batch_limit: int) -> tuple[int, ...]:
    """List the group sizes to choose from: powers of two up to the batch limit."""
    return tuple(2**power for power in range(batch_limit.bit_length()) if 2**power <= batch_limit)


class RandomRouter:
    """Picks server, choice and group at random, each with equal chance."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._random = rng.random
        self._groups = group_sizes(cluster.batch_limit)

    def route(self, seen: Observation) -> Route:
        """Draw a server, a choice and a group."""
        draw, alive, choices, groups = self._random, seen.alive_ids, seen.choices, self._groups
        return Route(
            alive[int(draw() * len(alive))],
            choices[int(draw() * len(choices))],
            groups[int(draw() * len(groups))],
            "random",
        )
