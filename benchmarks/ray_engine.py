"""The cost of Ray: the same servers as local processes and as Ray actors, on the same cores, in one run.

    python benchmarks/ray_engine.py [--seconds 4] [--rounds 3]

Two CPU servers, each bound to its core, run behind one gateway. The router always takes width 0.25, which
makes the engine's share of the time as large as possible. It either keeps a request on its server or moves it
at every segment. The engines take turns, so that noise of the machine hits both.

Latency is measured with one request at a time, throughput with 64 requests always under way. Then come the
channels alone: a round trip of a block's message, and of a block's activations, both by actor calls through
Ray's object store and by direct connection. At the end a raylet is killed under load and replaced; the table
says when the gateway notices and when the new server works.
"""

import argparse
import asyncio
import os
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any

import msgspec
import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster

from slimsched.serving.domain.cluster import Host
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import Engine, LocalEngine, specs_of
from slimsched.serving.live.wire import Fetch, FrameConnection, run
from slimsched.serving.ray.engine import join
from slimsched.serving.ray.messages import Handed, pack, unpack
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario

IMAGE = np.zeros((3, 32, 32), np.uint8).tobytes()
REQUESTS_UNDER_WAY = 64
STORE_BYTES = 96 * 2**20


class FixedRouter:
    """Routes at width 0.25 in blocks of 16; keeps a request on its server, or moves it at every segment."""

    def __init__(self, moving: bool) -> None:
        self._moving, self._turn = moving, 0

    def route(self, seen: Observation) -> Route:
        """Choose the next server in turn for a new request; otherwise stay or move."""
        self._turn += 1
        alive = seen.alive_ids
        if seen.source < 0:
            server = alive[self._turn % len(alive)]
        else:
            server = alive[(seen.source + self._moving) % len(alive)]
        return Route(server, 0, 16, "fixed")


def two_servers() -> Scenario:
    """Return the laptop scenario with each server bound to a core."""
    cores = sorted(os.sched_getaffinity(0))
    scenario = load_scenario("laptop")
    hosts = [Host(cores=(cores[number % len(cores)],)) for number in range(len(scenario.cluster))]
    gateway = msgspec.structs.replace(scenario.gateway, step_s=0.0)
    return msgspec.structs.replace(scenario, hosts=tuple(hosts), gateway=gateway)


async def measure(engine: Engine, moving: bool, seconds: float) -> dict[str, float]:
    """Measure latency one request at a time, throughput of many, and the gateway's CPU time per block."""
    scenario = two_servers()
    gateway = Gateway(scenario.cluster, FixedRouter(moving), scenario.gateway, first_block=engine.first_id)
    live = LiveCluster(gateway, engine)
    await live.start()
    try:
        for _ in range(50):
            await live.submit([IMAGE])
        latency_s, until_s = [], monotonic() + seconds
        while monotonic() < until_s:
            began_s = perf_counter()
            await live.submit([IMAGE])
            latency_s.append(perf_counter() - began_s)
        cpu_s, blocks = process_time(), gateway._next_block
        began_s, answered = perf_counter(), await throughput(live, seconds)
        rate = answered / (perf_counter() - began_s)
        blocks = gateway._next_block - blocks
        return {
            "p50_ms": 1e3 * median(latency_s),
            "p99_ms": 1e3 * float(np.percentile(latency_s, 99)),
            "images_per_s": rate,
            "blocks_per_s": blocks / seconds,
            "gateway_us_per_block": 1e6 * (process_time() - cpu_s) / blocks,
        }
    finally:
        await live.stop()


async def throughput(live: LiveCluster, seconds: float) -> int:
    """Keep many requests under way for this time and return how many were answered."""
    until_s, answered = monotonic() + seconds, 0

    async def client() -> None:
        nonlocal answered
        while monotonic() < until_s:
            await live.submit([IMAGE])
            answered += 1

    await asyncio.gather(*(client() for _ in range(REQUESTS_UNDER_WAY)))
    return answered


def engines(address: str, seconds: float, rounds: int) -> None:
    """Measure both engines in turn and print the medians over the rounds."""
    print("| engine | activations | p50 | p99 | images/s | blocks/s | gateway CPU per block |")
    print("|---|---|---|---|---|---|---|")
    for moving in (False, True):
        results: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
        for number in range(2 * rounds):
            name = "local" if (number + number // 2) % 2 == 0 else "ray"
            results[name].append(run(_one(name, address, moving, seconds)))
        rows = {n: {key: median(r[key] for r in rs) for key in rs[0]} for n, rs in results.items()}
        for name, row in rows.items():
            times = f"{row['p50_ms']:.2f} ms | {row['p99_ms']:.2f} ms"
            rates = f"{row['images_per_s']:.0f} | {row['blocks_per_s']:.0f}"
            way = "move" if moving else "stay"
            print(f"| {name} | {way} | {times} | {rates} | {row['gateway_us_per_block']:.0f} µs |")
        more_ms = rows["ray"]["p50_ms"] - rows["local"]["p50_ms"]
        share = rows["ray"]["images_per_s"] / rows["local"]["images_per_s"]
        cost = f"{more_ms:+.2f} ms = {250 * more_ms:+.0f} µs per block"
        print(f"| ray − local | | {cost} | | {100 * share:.0f} % | | |")


async def _one(name: str, address: str, moving: bool, seconds: float) -> dict[str, float]:
    if name == "ray":
        return await measure(join(specs_of(two_servers()), address=address), moving, seconds)
    return await measure(LocalEngine(specs_of(two_servers())), moving, seconds)


def activations(shape: tuple[int, ...]) -> torch.Tensor:
    """Return activations with the memory layout they have after a segment."""
    return torch.ones(shape).to(memory_format=torch.channels_last)


class Echo:
    """An actor that sends back what it gets, by actor call and over a direct connection."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], torch.Tensor] = {}

    def _rows(self, shape: tuple[int, ...]) -> torch.Tensor:
        if shape not in self._made:
            self._made[shape] = activations(shape)
        return self._made[shape]

    async def call(self, message: bytes) -> bytes:
        """Return a message through Ray."""
        return message

    async def rows(self, shape: tuple[int, ...]) -> Any:
        """Return activations through Ray's object store."""
        return self._rows(shape).permute(0, 2, 3, 1).numpy()

    async def open(self) -> int:
        """Open a port that does the same over a direct connection."""

        def received(connection: FrameConnection, message: Fetch) -> None:
            shape = tuple(message.requests)
            connection.send(pack((self._rows(shape),)) if shape else Handed())

        server = await asyncio.get_running_loop().create_server(
            lambda: FrameConnection(Fetch, received, lambda _: None), "127.0.0.1", 0
        )
        return int(server.sockets[0].getsockname()[1])


class ChannelBenchmark(Echo):
    """An actor on another node that measures the channels to an Echo."""

    async def measure(self, echo: Any, times: int) -> list[tuple[str, float, float]]:
        """Return the median microseconds by actor call and by direct connection, for each payload."""
        answers: asyncio.Queue[Handed] = asyncio.Queue()
        port = await echo.open.remote()
        _, door = await asyncio.get_running_loop().create_connection(
            lambda: FrameConnection(Handed, lambda _, m: answers.put_nowait(m), lambda _: None),
            "127.0.0.1",
            port,
        )

        async def direct(shape: tuple[int, ...]) -> None:
            door.send(Fetch(requests=list(shape)))
            unpack(await answers.get())

        call = await _median_us(lambda: echo.call.remote(b"x" * 3500), times)
        rows = [("message of a block (3.5 kB)", call, await _median_us(lambda: direct(()), times))]
        for width, channels in ((0.25, 16), (1.0, 64)):
            shape = (16, channels, 32, 32)
            size = 4 * int(np.prod(shape)) / 2**20
            call = await _median_us(lambda shape=shape: echo.rows.remote(shape), times)
            straight = await _median_us(lambda shape=shape: direct(shape), times)
            rows.append((f"activations of 16 images at {width:g} ({size:.0f} MiB)", call, straight))
        return rows


async def _median_us(once: Any, times: int) -> float:
    taken = []
    for _ in range(times):
        began_s = perf_counter()
        await once()
        taken.append(1e6 * (perf_counter() - began_s))
    return median(taken[times // 5 :])


def channels() -> None:
    """Measure round trips of a message and of activations between actors on two nodes."""
    echo = ray.remote(Echo).options(resources={"first": 0.1}).remote()
    asker = ray.remote(ChannelBenchmark).options(resources={"second": 0.1}).remote()
    print("\n| round trip, two raylets | actor call, object store | direct connection |")
    print("|---|---|---|")
    for what, call_us, direct_us in ray.get(asker.measure.remote(echo, 100)):
        print(f"| {what} | {call_us:.0f} µs | {direct_us:.0f} µs |")


async def membership(cluster: Cluster) -> list[tuple[str, float]]:
    """Kill a raylet under load and add another; time until the gateway notices and the new one works."""
    scenario = two_servers()
    hosts = (scenario.hosts[0], Host(resources={"spare": 1.0}))
    scenario = msgspec.structs.replace(scenario, hosts=hosts)
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, resources={"spare": 1.0})
    engine = join(specs_of(scenario), address=cluster.address)
    gateway = Gateway(scenario.cluster, FixedRouter(True), scenario.gateway, first_block=engine.first_id)
    live = LiveCluster(gateway, engine)
    await live.start()
    name, seen = scenario.cluster.names[1], asyncio.Event()

    async def load() -> None:
        while True:
            answers = await asyncio.gather(*[live.submit([IMAGE]) for _ in range(16)])
            if any(name in one.receipts[0].servers for one in answers):
                seen.set()

    task = asyncio.create_task(load())
    began_s = monotonic()
    cluster.remove_node(node, allow_graceful=False)
    while live.is_alive(1):
        await asyncio.sleep(0.001)
    noticed_s = monotonic() - began_s
    await asyncio.sleep(1.0)
    seen.clear()
    began_s = monotonic()
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, resources={"spare": 1.0})
    raylet_s = monotonic() - began_s
    await seen.wait()
    works_s = monotonic() - began_s
    task.cancel()
    await engine.stop()
    return [
        ("raylet killed → the gateway knows and its blocks run elsewhere", noticed_s),
        ("new raylet requested → it is up", raylet_s),
        (
            "new raylet requested → its server is warm and has answered (Ray must first drop the old node)",
            works_s,
        ),
    ]


def main() -> None:
    """Start three raylets on this machine and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds per engine; 0 measures only the channels"
    )
    asked = parser.parse_args()
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for name in ("first", "second"):
        cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, resources={name: 1.0})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        if asked.rounds:
            engines(cluster.address, asked.seconds, asked.rounds)
        channels()
        print("\n| membership, under load | |\n|---|---|")
        for what, time_s in run(membership(cluster)):
            print(f"| {what} | {time_s:.1f} s |")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
