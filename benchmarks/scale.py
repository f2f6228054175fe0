"""What limits a large cluster first: router, gateway or telemetry.

    python benchmarks/scale.py [--servers 64 1000]

The first table has the microseconds per routing decision, by router and number of servers. The second runs
the real gateway (LiveCluster, with every message encoded and decoded as on the wire) with servers that answer
at once, so that only the gateway limits it. The third simulates the mix of `fleet-64` with any number of
servers, at half its rate per server; it also shows the time per request in the router, in the rest of the
gateway and in telemetry. All runs use one core. Servers are modelled; decisions and the gateway's time are
measured.
"""

import argparse
import asyncio
from collections.abc import Callable
from time import monotonic, perf_counter, process_time
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from slimsched.models.spec import ModelSpec
from slimsched.serving.domain.cluster import Cluster, ServerSnapshot
from slimsched.serving.domain.request import Block
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import SegmentFinished, TelemetryReceived
from slimsched.serving.gateway.observation import Observation, Route, Router
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import EngineListener
from slimsched.serving.live.wire import BatchDone, TakeBlock, ToGateway, ToServer, run
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.simulated.run import simulate

ROUTERS = (
    "power-of-two",
    "jsq",
    "sed",
    "drift-plus-penalty",
    "lp",
    "goal",
    "sharded:32:goal",
)
SIMULATED = ("sed", "goal", "sharded:32:goal")
IMAGE = bytes(3 * 32 * 32)


def fleet(servers: int, requests: int) -> Scenario:
    """Return the mix of `fleet-64` with this many servers, at half its rate per server."""
    shipped = load_scenario("fleet-64")
    old = shipped.cluster
    order = np.linspace(0, len(old), servers, endpoint=False).astype(int)  # keeps the mix of devices
    cluster = Cluster(
        names=[f"server-{number}" for number in range(servers)],
        profiles=[old.profiles[i] for i in order],
        models=old.models,
        links=[old.links[i] for i in order],
        gateway_link=replace(
            old.gateway_link, bandwidth_bytes_per_s=1e13
        ),  # the links of many gateways together
        batch_limit=old.batch_limit,
    )
    rate_per_s = 0.5 * shipped.load.rate_per_s * servers / len(old)
    scenario = replace(
        shipped, cluster=cluster, schedulers=tuple(shipped.schedulers[i] for i in order), hosts=()
    )
    return scenario.with_load(rate_per_s=rate_per_s, seconds=requests / rate_per_s)


def decision_us(cluster: Cluster, spec: str) -> float:
    """Return the time of one routing decision; the servers' state changes between decisions."""
    router, seen = make_router(spec, cluster, 0), Observation(len(cluster))
    seen.count, seen.arrival_rate_per_s = 16, 1000.0 * len(cluster)
    seen.choices = cluster.models[0].tree.after[()]
    router.route(seen)
    count = 1500
    began_s = perf_counter()
    for number in range(count):
        seen.now_s += 0.005 * (number % 64 == 0)  # a scheduling step has many decisions
        seen.backlog_s[number % len(cluster)] += 0.001
        seen.outstanding[number % len(cluster)] += 1
        router.route(seen)
    return 1e6 * (perf_counter() - began_s) / count


def decisions(numbers: list[int]) -> None:
    """Print the table of decisions."""
    print("| µs per decision | " + " | ".join(str(n) for n in numbers) + " |")
    print("|---" * (len(numbers) + 1) + "|")
    clusters = [fleet(n, 1000).cluster for n in numbers]
    for spec in ROUTERS:
        print(f"| {spec} | " + " | ".join(f"{decision_us(one, spec):.1f}" for one in clusters) + " |")


class TimedRouter:
    """A router that measures its own time."""

    def __init__(self, router: Router) -> None:
        self._router, self.spent_s, self.calls = router, 0.0, 0

    def route(self, seen: Observation) -> Route | None:
        """Pass the question on and measure the time."""
        began_s = perf_counter()
        route = self._router.route(seen)
        self.spent_s += perf_counter() - began_s
        self.calls += 1
        return route


class Stopwatch:
    """Measures the time spent in the gateway and in telemetry, by wrapping both."""

    def __init__(self) -> None:
        self.routers: list[TimedRouter] = []
        self.gateway_s = self.telemetry_s = 0.0

    def router(self, spec: str) -> Callable[..., Router]:
        """Return the function that makes a router which measures its own time."""

        def make(cluster: Cluster, seed: int, goal: Goal | None) -> Router:
            self.routers.append(TimedRouter(make_router(spec, cluster, seed, goal)))
            return self.routers[-1]

        return make

    def __enter__(self) -> "Stopwatch":
        self._handle, self._sample = Gateway.handle, SimulatedCluster._sample
        stopwatch = self

        def handle(gateway: Gateway, event: Any, *, now_s: float) -> Any:
            began_s = perf_counter()
            commands = stopwatch._handle(gateway, event, now_s=now_s)
            spent_s = perf_counter() - began_s
            if isinstance(event, TelemetryReceived):
                stopwatch.telemetry_s += spent_s
            else:
                stopwatch.gateway_s += spent_s
            return commands

        def sample(cluster: SimulatedCluster, *arguments: Any) -> None:
            began_s = perf_counter()
            stopwatch._sample(cluster, *arguments)
            stopwatch.telemetry_s += perf_counter() - began_s

        Gateway.handle, SimulatedCluster._sample = handle, sample  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Gateway.handle, SimulatedCluster._sample = self._handle, self._sample  # type: ignore[method-assign]


def simulations(numbers: list[int], requests: int) -> None:
    """Simulate each router on each fleet and print the results and where the time went."""
    print(
        "\n| servers | router | accuracy | of the bound | mean | p99 | router | gateway | telemetry | all |"
    )
    print("|---" * 10 + "|")
    for number in numbers:
        scenario = fleet(number, requests)
        for spec in SIMULATED:
            with Stopwatch() as stopwatch:
                row = simulate(scenario, stopwatch.router(spec)).summary
            router_s = sum(one.spent_s for one in stopwatch.routers)
            each = 1e6 / max(1, row.arrived)
            times = [router_s, stopwatch.gateway_s - router_s, stopwatch.telemetry_s, row.wall_s]
            print(
                f"| {number} | {spec} | {100 * row.accuracy:.2f} % | {100 * row.bound_share:.1f} % | "
                f"{1e3 * row.latency_mean_s:.1f} ms | {1e3 * row.latency_p99_s:.1f} ms | "
                + " | ".join(f"{each * time_s:.1f} µs" for time_s in times)
                + " |",
                flush=True,
            )


class InstantEngine:
    """An engine whose servers answer at once; it encodes and decodes messages as on the wire."""

    arena = None
    """Inputs travel in messages."""
    first_id, waiting = 0, ()

    def __init__(self, servers: int, spec: ModelSpec) -> None:
        self.clock_zero_s = monotonic()
        self._servers, self._spec, self._row = servers, spec, bytes(spec.answer_bytes)
        self._encode = msgspec.msgpack.Encoder().encode
        self._to_server = msgspec.msgpack.Decoder(ToServer)
        self._to_gateway = msgspec.msgpack.Decoder(ToGateway)
        self.server_s = 0.0

    async def start(self, listener: EngineListener) -> None:
        """Report all servers as up."""
        self._listener, self._loop = listener, asyncio.get_running_loop()
        for server in range(self._servers):
            listener.server_up(server)

    def send(self, server: int, message: ToServer) -> None:
        """Answer a block at once. Encoding counts as the gateway's time, the server's work does not."""
        body = self._encode(message)
        if isinstance(message, TakeBlock):
            began_s = process_time()
            block: Block = self._to_server.decode(body).block  # type: ignore[union-attr]
            last = self._spec.ends(block.key.last_segment, block.key.choices[-1])
            outputs = [self._row * block.examples] if last else []
            finished = SegmentFinished(
                server=server,
                choice=block.key.choice,
                ahead=block.key.ahead,
                blocks=(block,),
                size=block.examples,
                busy_s=1e-4,
                energy_j=0.1,
                queue_s=(0.0,),
            )
            answer = self._encode(BatchDone(finished=finished, outputs=outputs))
            self.server_s += process_time() - began_s
            self._loop.call_soon(self._deliver, server, answer)

    def tell(self, server: int, body: bytes) -> None:
        """Deliver a message from a server."""
        self._deliver(server, body)

    def _deliver(self, server: int, body: bytes) -> None:
        self._listener.received(server, self._to_gateway.decode(body))

    def peer_address(self, server: int) -> str:
        """Return an address that nothing uses."""
        return "10.0.0.1:40000"

    def kill(self, server: int) -> None:
        """Do nothing: there are no processes."""

    async def stop(self, *, drain: bool = True) -> None:
        """Do nothing: there are no processes."""


async def live(servers: int, spec: str, images: int) -> tuple[float, float]:
    """Return the images per second of the gateway alone, and the microseconds per telemetry message."""
    scenario = fleet(servers, 1000)
    router = make_router(spec, scenario.cluster, 0)
    gateway = Gateway(scenario.cluster, router, replace(scenario.gateway, step_s=0.002))
    engine = InstantEngine(servers, scenario.cluster.models[0].spec)
    cluster = LiveCluster(gateway, engine)
    await cluster.start()
    await asyncio.gather(*[cluster.submit([IMAGE]) for _ in range(256)])
    began_s, engine.server_s = perf_counter(), 0.0
    for _ in range(images // 2048):
        await asyncio.gather(*[cluster.submit([IMAGE]) for _ in range(2048)])
    rate = images / (perf_counter() - began_s - engine.server_s)
    snapshot = ServerSnapshot(
        taken_s=0.0, utilization=0.5, power_w=50.0, vram_bytes=1, queued=(1, 2, 3, 4), instances=8
    )
    body = msgspec.msgpack.encode(TelemetryReceived(server=0, snapshot=snapshot))
    began_s = perf_counter()
    for number in range(4000):
        engine.tell(number % servers, body)
    return rate, 1e6 * (perf_counter() - began_s) / 4000


def gateways(numbers: list[int]) -> None:
    """Print what one live gateway can do."""
    print("\n| servers | router | images/s per gateway | µs per image | µs per telemetry message | at 4/s |")
    print("|---" * 6 + "|")
    for number in numbers:
        for spec in ("power-of-two", "goal", "sharded:32:goal"):
            rate, telemetry_us = run(live(number, spec, 16384))
            share = 100 * number * 4 * telemetry_us / 1e6
            cells = [f"{rate:,.0f}", f"{1e6 / rate:.0f}", f"{telemetry_us:.0f}", f"{share:.1f} % of a core"]
            print(f"| {number} | {spec} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--requests", type=int, default=300_000, help="requests per simulated run")
    asked = parser.parse_args()
    decisions(asked.servers)
    gateways(asked.servers)
    simulations(asked.servers, asked.requests)


if __name__ == "__main__":
    main()
