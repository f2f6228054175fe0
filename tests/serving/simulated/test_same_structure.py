"""Live and simulated runs of one trace make the same decisions where time does not matter."""

import asyncio
from collections.abc import Sequence
from time import monotonic

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.serving.domain.profile import ServiceNoise
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import Answer, SegmentFinished, SendBlock
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import LocalEngine, specs_of
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.workload.load import RequestStream

COUNT = 6
Step = tuple[object, ...]


class Structure:
    """An observer that keeps who was sent what, what ran together and what was answered, without times."""

    def __init__(self) -> None:
        self.routes: list[Step] = []
        self.batches: list[Step] = []
        self.answers: list[Step] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        if isinstance(event, SegmentFinished):
            ids = tuple(request.id for block in event.blocks for request in block.requests)
            self.batches.append((event.server, event.key, event.size, ids))
        for command in commands:
            match command:
                case SendBlock(server=server, block=block, source=source):
                    ids = tuple(request.id for request in block.requests)
                    self.routes.append((server, source, block.key, ids))
                case Answer(requests=requests):
                    self.answers += [(request.id, request.path) for request in requests]
                case _:
                    pass


def test_one_request_after_another_takes_the_same_way_live_and_simulated() -> None:
    scenario = load_scenario("laptop")
    scenario = replace(scenario, hosts=tuple(replace(host, cores=()) for host in scenario.hosts if host))
    live, simulated = Structure(), Structure()

    async def serve() -> None:
        gateway = Gateway(scenario.cluster, make_router("round-robin", scenario.cluster, 0), scenario.gateway)
        zero_s = monotonic()
        running = LiveCluster(gateway, LocalEngine(specs_of(scenario), clock_zero_s=zero_s), [live])
        await running.start()
        try:
            for _ in range(COUNT):
                await running.submit([bytes(3 * 32 * 32)])
        finally:
            await running.stop()

    asyncio.run(serve())
    SimulatedCluster(
        replace(scenario, costs=(), noise=ServiceNoise(batches=0.0, drift=0.0)),
        Gateway(scenario.cluster, make_router("round-robin", scenario.cluster, 0), scenario.gateway),
        RequestStream(np.arange(1.0, COUNT + 1.0), examples=np.zeros(COUNT, np.int64)),
        observers=[simulated],
    ).run(COUNT + 1.0, drain=True)
    assert live.answers == simulated.answers
    assert live.routes == simulated.routes
    assert live.batches == simulated.batches
    assert {server for server, *_ in live.batches} == set(range(len(scenario.cluster)))
