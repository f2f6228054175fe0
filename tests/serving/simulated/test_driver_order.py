"""Both drivers do things in the same order: the same load through each leaves the same log entries.

The live driver runs here in one process: real gateway, real servers, messages handed over by the event loop,
and an executor that needs no device. Times differ between the drivers, so they are left out.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from cluster import MODEL, block, flat_profile, small_cluster
from slimsched.core.clock import Timeline
from slimsched.models.elastic import Tensors
from slimsched.serving.domain.cluster import Cluster, Host, Instance
from slimsched.serving.domain.profile import ServiceNoise, record_of
from slimsched.serving.domain.request import Key
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import BlockDropped, GatewayOptions, SegmentFinished
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import EngineListener
from slimsched.serving.live.executor import Executor
from slimsched.serving.live.sensors import Reading
from slimsched.serving.live.server import LiveServer
from slimsched.serving.live.wire import Drain, ServerSpec, TakeBlock, ToGateway, ToServer
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.scenario import Scenario, TelemetryOptions
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.simulated.server import SimulatedServer
from slimsched.serving.workload.load import Load, RequestStream

COUNT = 4
TIMES = {"at_s", "arrival_s", "deadline_s", "finished_s", "busy_s", "energy_j", "queue_s", "legs_s"}
OPTIONS = SchedulerOptions(batch_limit=8, idle_unload_s=1e6, scale_trigger=1000, utilization_block=2.0)
IMAGE = bytes(3 * 32 * 32)


def outline(value: Any) -> Any:
    """Everything a value says but times."""
    if isinstance(value, Struct):
        fields = [name for name in value.__struct_fields__ if name not in TIMES]
        return (type(value).__name__, *[(name, outline(getattr(value, name))) for name in fields])
    if isinstance(value, list | tuple):
        return tuple(outline(one) for one in value)
    return value


class Entries:
    """An observer that keeps each entry, and beside it what was carried out."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        self.seen.append((machine, outline(event), outline(tuple(commands))))


class StubExecutor(Executor):
    """Runs nothing: activations are single numbers."""

    device = torch.device("cpu")

    def example(self, key: Key, rows: int) -> Tensors:
        return (torch.zeros(rows, 1, 1, 1),)

    def ends(self, key: Key) -> bool:
        return MODEL.spec.ends(key.last_segment, key.choices[-1])

    def load(self, instance: Instance) -> int:
        return instance.memory_bytes

    def unload(self, instance: int) -> None:
        pass

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        rows = len(inputs[0])
        classes = MODEL.spec.outputs[0].shape[0]
        return (torch.zeros(rows, classes) if self.ends(key) else torch.zeros(rows, 1, 1, 1),)

    def is_confident(self, model: int) -> bool:
        return False


class StubMeter:
    """Draws nothing."""

    source = "none"

    def read(self, active_j: float) -> Reading:
        return Reading(at_s=0.0, energy_j=0.0)


class InProcess:
    """An engine whose servers live in this process, and peers that fetch from each other."""

    arena, waiting = None, ()
    clock_zero_s, first_id = 0.0, 0

    def __init__(self, cluster: Cluster, observers: Sequence[Entries]) -> None:
        self.servers = [
            LiveServer(
                ServerSpec(
                    index=index,
                    name=name,
                    host=Host(),
                    scheduler=OPTIONS,
                    models=[MODEL.name],
                    profiles=[record_of(cluster.profiles[index], MODEL)],
                    telemetry_period_s=100.0,
                ),
                cluster.models,
                cluster.profiles[index],
                StubExecutor([]),
                StubMeter(),
                self,
                lambda message, index=index: self._tell(index, message),
                clock_zero_s=0.0,
                observers=observers,
            )
            for index, name in enumerate(cluster.names)
        ]

    async def start(self, listener: EngineListener) -> None:
        self._listener, self._loop = listener, asyncio.get_running_loop()
        for server in self.servers:
            await server.start()
        for index in range(len(self.servers)):
            listener.server_up(index)

    def send(self, server: int, message: ToServer) -> None:
        self._loop.call_soon(self.servers[server].receive, message)

    def _tell(self, server: int, message: ToGateway) -> None:
        self._loop.call_soon(self._listener.received, server, message)

    def peer_address(self, server: int) -> str:
        return str(server)

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        return self.servers[int(peer)].surrender(requests)

    def kill(self, server: int) -> None:
        raise AssertionError("these runs kill no server")

    async def stop(self, *, drain: bool = True) -> None:
        for server in self.servers:
            server.receive(Drain())
            await server.drained.wait()


def make_cluster() -> Cluster:
    flat, small = flat_profile(instance_bytes=1), small_cluster((1.0, 1.0))
    return Cluster(
        names=small.names,
        profiles=[flat, flat],
        models=small.models,
        links=small.links,
        gateway_link=small.gateway_link,
        batch_limit=8,
    )


def gateway_of(cluster: Cluster) -> Gateway:
    return Gateway(cluster, make_router("round-robin", cluster, 0), GatewayOptions(step_s=0.002))


def live_entries(cluster: Cluster) -> list[Any]:
    entries = Entries()

    async def main() -> None:
        running = LiveCluster(gateway_of(cluster), InProcess(cluster, [entries]), [entries])
        await running.start()
        for _ in range(COUNT):
            await running.submit([IMAGE], example=0)
        await running.stop()

    asyncio.run(main())
    return entries.seen


def simulated_entries(cluster: Cluster) -> list[Any]:
    entries = Entries()
    scenario = Scenario(
        name="two servers",
        cluster=cluster,
        schedulers=(OPTIONS, OPTIONS),
        telemetry=TelemetryOptions(period_s=100.0),
        load=Load(rate_per_s=1.0, seconds=1.0),
        noise=ServiceNoise(batches=0.0, drift=0.0),
    )
    SimulatedCluster(
        scenario,
        gateway_of(cluster),
        RequestStream(np.arange(1.0, COUNT + 1.0), examples=np.zeros(COUNT, np.int64)),
        observers=[entries],
    ).run(COUNT + 1.0, drain=True)
    return entries.seen


def is_start(entry: Any) -> bool:
    """Live servers come up one by one before the first request; simulated ones are there."""
    return entry[1][0] in ("Started", "ServerUp", "ServerDown")


def test_the_same_load_leaves_the_same_entries_in_the_same_order_live_and_simulated() -> None:
    cluster = make_cluster()
    live = [entry for entry in live_entries(cluster) if not is_start(entry)]
    simulated = [entry for entry in simulated_entries(cluster) if not is_start(entry)]
    assert len(simulated) > 12 * COUNT
    assert {machine for machine, *_ in simulated} == {"gateway", *cluster.names}
    for number, (one, other) in enumerate(zip(live, simulated, strict=False)):
        assert one == other, f"entry {number}"
    assert len(live) == len(simulated)


class Reports(Entries):
    """Entries of one server, and between them what it reports."""

    def report(self, event: SegmentFinished | BlockDropped) -> None:
        assert isinstance(event, SegmentFinished), "nothing is dropped here"
        self.seen.append(("reported", outline(event)))


def test_a_server_begins_its_next_batch_before_it_reports_the_last_live_and_simulated() -> None:
    cluster, blocks = make_cluster(), [block(number, 8) for number in (1, 2, 3)]
    simulated, live, timeline = Reports(), Reports(), Timeline()
    server = SimulatedServer(
        index=0,
        name="server-0",
        profile=cluster.profiles[0],
        models=cluster.models,
        options=OPTIONS,
        timeline=timeline,
        report=simulated.report,
        observers=[simulated],
    )
    server.start()
    for one in blocks:
        server.receive(one)
    while timeline.next_s() < 60.0:
        timeline.advance()

    async def main() -> None:
        engine = InProcess(cluster, [live])
        running = engine.servers[0]
        running._tell = lambda message: live.report(message.finished)  # type: ignore[union-attr]
        await running.start()
        for one in blocks:
            running.receive(TakeBlock(block=one, inputs=[IMAGE * 8]))
        running.receive(Drain())
        await running.drained.wait()

    asyncio.run(main())
    assert live.seen == simulated.seen
    kinds = [entry[1][0] for entry in live.seen]
    assert kinds[-6:] == ["BatchFinished", "SegmentFinished"] * 3
