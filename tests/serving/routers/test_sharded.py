"""Shards of servers: every request stays in one, and the router of the shard sees only its own."""

from random import Random

import numpy as np

from cluster import small_cluster
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.routers.classic import ShardedRouter


class LeastBacklog:
    """Remembers how many servers it was asked about."""

    def __init__(self, cluster: Cluster) -> None:
        self.servers = len(cluster)

    def route(self, seen: Observation) -> Route:
        assert len(seen.backlog_s) == self.servers == 4
        alive = seen.alive_ids
        return Route(alive[int(np.argmin(seen.backlog_s[alive]))], 1, 4, f"input at {seen.source}")


def sharded() -> tuple[ShardedRouter, Observation]:
    cluster = small_cluster((1.0,) * 12)
    return ShardedRouter(cluster, Random(0), LeastBacklog, size=4), Observation(12)


def test_new_requests_go_to_the_less_loaded_of_two_shards() -> None:
    router, seen = sharded()
    for _ in range(240):
        route = router.route(seen)
        assert route is not None
        seen.backlog_s[route.server] += 0.01
    assert seen.backlog_s.max() - seen.backlog_s.min() < 0.05


def test_a_request_stays_in_the_shard_of_its_activation() -> None:
    router, seen = sharded()
    for source in range(12):
        seen.source = source
        route = router.route(seen)
        assert route is not None
        assert route.server % 3 == source % 3
        assert route.reason == f"input at {source // 3}"


def test_a_shard_whose_servers_are_all_down_hands_its_requests_over() -> None:
    router, seen = sharded()
    router.route(seen)
    for server in (0, 3, 6, 9):
        seen.set_alive(server, False)
    seen.source = 3
    route = router.route(seen)
    assert route is not None
    assert route.server % 3 != 0
    assert route.reason == "input at -1"


def test_servers_that_come_and_go_are_noticed() -> None:
    router, seen = sharded()
    seen.source = 1
    seen.set_alive(1, False)
    found = {route.server for _ in range(20) if (route := router.route(seen)) is not None}
    assert 1 not in found
    seen.set_alive(1, True)
    seen.backlog_s[[4, 7, 10]] = 1.0
    route = router.route(seen)
    assert route is not None
    assert route.server == 1
