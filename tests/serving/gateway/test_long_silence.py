"""A server that was busy, then idle for hours, serves the next request."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec import Struct

from cluster import small_cluster
from slimsched.serving.domain.profile import ServiceNoise
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import Answer, GatewayOptions
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.scenario import Scenario, TelemetryOptions
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.workload.load import Load, RequestStream

BURST, AFTER_S = 6000, 5e4


class Answered:
    """Counts answers."""

    count = 0

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        self.count += sum(len(one.requests) for one in commands if isinstance(one, Answer))


@pytest.mark.parametrize(
    "router", ["goal", "goal[p99<=50ms]", "goal[accuracy>=75, min energy]", "drift-plus-penalty"]
)
def test_the_first_request_after_hours_is_answered(router: str) -> None:
    cluster = small_cluster((1.0, 1.0))
    arrivals = np.append(np.linspace(0.01, 0.2, BURST), AFTER_S + np.arange(5))
    answered = Answered()
    scenario = Scenario(
        name="two servers",
        cluster=cluster,
        schedulers=(SchedulerOptions(batch_limit=8),) * 2,
        gateway=GatewayOptions(step_s=0.002),
        telemetry=TelemetryOptions(period_s=1e4),
        load=Load(rate_per_s=1.0, seconds=1.0),
        noise=ServiceNoise(batches=0.0, drift=0.0),
    )
    SimulatedCluster(
        scenario,
        Gateway(cluster, make_router(router, cluster, 0), scenario.gateway),
        RequestStream(arrivals, examples=np.zeros(len(arrivals), np.int64)),
        observers=[answered],
    ).run(AFTER_S + 10.0, drain=True)
    assert answered.count == len(arrivals)
