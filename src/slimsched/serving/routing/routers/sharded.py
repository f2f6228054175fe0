"""The sharded router: splits the servers into shards, each with its own router.

A new request goes to the less loaded of two random shards (power of two choices) and stays there, so its
activations move within the shard. Each router sees only its shard's servers, so its cost does not grow with
the cluster. Servers are dealt to shards in turn, so every shard has the same mix of devices.
"""

from collections.abc import Callable
from random import Random

import numpy as np
from msgspec.structs import replace

from slimsched.serving.domain.cluster import GATEWAY, Cluster
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route, Router


class _Shard:
    """Every k-th server, with views of the whole cluster's observation."""

    def __init__(self, number: int, shards: int, cluster: Cluster, make: Callable[[Cluster], Router]) -> None:
        self._pick = slice(number, None, shards)
        self._number, self._shards = number, shards
        part = cluster.part(self._pick)
        self._router = make(part)
        self.seen = Observation(len(part), len(part.models))

    def look_at(self, whole: Observation) -> None:
        """Make this shard's arrays views of the whole observation's arrays."""
        for name, value in vars(whole).items():
            if isinstance(value, np.ndarray) and name != "model_rates_per_s":
                setattr(self.seen, name, value[self._pick])
        self.count_alive()

    def count_alive(self) -> None:
        """Update the list of servers that are up."""
        self.seen.alive_ids = [int(i) for i in np.flatnonzero(self.seen.alive)]

    @property
    def load_s(self) -> float:
        """Mean backlog per server."""
        return float(self.seen.backlog_s.sum()) / len(self.seen.alive_ids)

    def route(self, whole: Observation) -> Route | None:
        """Ask this shard's router about the head."""
        seen, shards = self.seen, self._shards
        seen.now_s, seen.segment, seen.previous = whole.now_s, whole.segment, whole.previous
        seen.model, seen.count, seen.path, seen.plan = whole.model, whole.count, whole.path, whole.plan
        seen.choices, seen.plans = whole.choices, whole.plans
        seen.arrival_s, seen.deadline_s, seen.min_accuracy = (
            whole.arrival_s,
            whole.deadline_s,
            whole.min_accuracy,
        )
        seen.fifo, seen.done = whole.fifo // shards, whole.done // shards
        seen.done_rate_per_s, seen.active_w = whole.done_rate_per_s / shards, whole.active_w / shards
        seen.arrival_rate_per_s = whole.arrival_rate_per_s / shards
        seen.model_rates_per_s = whole.model_rates_per_s / shards
        source = whole.source
        here = source >= 0 and source % shards == self._number
        seen.source = source // shards if here else GATEWAY
        route = self._router.route(seen)
        if route is None:
            return None
        why = route.why
        if why is not None and why.server >= 0:
            why = replace(why, server=why.server * shards + self._number)
        server = route.server * shards + self._number
        return Route(server, route.choice, route.group, route.reason, route.ahead, why)


class ShardedRouter:
    """Picks a shard, then asks its router."""

    def __init__(
        self, cluster: Cluster, rng: Random, make: Callable[[Cluster], Router], *, size: int = 32
    ) -> None:
        shards = max(1, len(cluster) // max(1, size))
        self._shards = [_Shard(number, shards, cluster, make) for number in range(shards)]
        self._rng = rng
        self._whole: Observation | None = None
        self._alive_ids: list[int] = []
        self._up: list[_Shard] = []

    def route(self, seen: Observation) -> Route | None:
        """Return the route that the shard's router chooses."""
        if seen is not self._whole or seen.alive_ids is not self._alive_ids:
            self._look(seen)
        return self._choose(seen).route(seen)

    def _choose(self, seen: Observation) -> _Shard:
        """Return the shard that holds the input; for a new request, the less loaded of two."""
        if seen.source >= 0:
            shard = self._shards[seen.source % len(self._shards)]
            if shard.seen.alive_ids:
                return shard
        if len(self._up) < 2:
            return self._up[0]
        one, other = self._rng.sample(self._up, 2)
        return one if one.load_s <= other.load_s else other

    def _look(self, seen: Observation) -> None:
        if seen is not self._whole:
            self._whole = seen
            for shard in self._shards:
                shard.look_at(seen)
        for shard in self._shards:
            shard.count_alive()
        self._alive_ids = seen.alive_ids
        self._up = [shard for shard in self._shards if shard.seen.alive_ids]
