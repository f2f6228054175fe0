"""A real Ray cluster of several raylets on this machine, and live clusters on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import choice
from served import CONFIG
from slimsched.core.log import Observer
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import specs_of
from slimsched.serving.ray.engine import RayEngine, join
from slimsched.serving.scenario.files import load_scenario

STORE_BYTES = 80 * 2**20
NODE = {"num_cpus": 4, "object_store_memory": STORE_BYTES}
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
}
LATE = """
[[server]]
name = "late"
device = "cpu-8-core"
host = { kind = "cpu", resources = { spare = 1.0 } }
"""


class Wanderer:
    """Takes turns, so that activations move between servers all the time."""

    def __init__(self) -> None:
        self.turn = 0

    def route(self, seen: Observation) -> Route:
        self.turn += 1
        return Route(seen.alive_ids[self.turn % len(seen.alive_ids)], choice(0.5), 4, "wandering")


class Raylets:
    """A head that takes no servers and two nodes that do; more can be added and killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "_system_config": QUICK_TO_NOTICE,
            },
        )
        self.nodes = [self.add() for _ in range(2)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **offers: float) -> Any:
        """Start one more raylet."""
        return self.cluster.add_node(**NODE, resources=offers)

    def kill(self, node: Any) -> None:
        """SIGKILL to a raylet and all that belongs to it."""
        self.cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


async def start(
    raylets: Raylets,
    folder: Path,
    *,
    extra: str = "",
    namespace: str = "",
    observers: Sequence[Observer] = (),
) -> tuple[LiveCluster, RayEngine]:
    """A gateway in this process on servers that are actors."""
    config = folder / "on-ray.toml"
    config.write_text(CONFIG + extra)
    scenario = load_scenario(str(config)).for_clients()
    engine = join(
        specs_of(scenario), address=raylets.address, namespace=namespace, autoscale=scenario.autoscale
    )
    gateway = Gateway(scenario.cluster, Wanderer(), scenario.gateway, first_block=engine.first_id)
    live = LiveCluster(gateway, engine, observers)
    await live.start()
    return live, engine
