"""Overload with deadlines, simulated: goodput stays at capacity, and what is refused is refused at once."""

import numpy as np
import pytest

from cluster import small_cluster
from slimsched.core.log import Observer
from slimsched.serving.domain.profile import ServiceNoise
from slimsched.serving.domain.request import NEVER_S, DropReason
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import Answer, Drop, GatewayOptions
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.workload.load import Load, RequestStream

CLUSTER = small_cluster((0.2, 0.2), batch_limit=32)
CAPACITY_PER_S = float(sum(1.0 / CLUSTER.plan_s(CLUSTER.models[0], (0,) * 4)))
DEADLINE_S = 0.5
OVERLOAD_S, AFTER_S = 3.0, 3.0


class Ends:
    """Keeps when and how each request ended."""

    def __init__(self) -> None:
        self.answered: list[tuple[float, float]] = []  # arrival, end
        self.dropped: list[tuple[float, float, DropReason]] = []

    def observe(self, now_s: float, machine: str, event: object, commands: object) -> None:
        for command in commands:  # type: ignore[attr-defined]
            if isinstance(command, Answer):
                self.answered += [(one.arrival_s, now_s) for one in command.requests]
            elif isinstance(command, Drop):
                self.dropped += [(one.arrival_s, now_s, command.reason) for one in command.requests]


def overloaded(
    load: float,
    *,
    plan: str = "network",
    router: str = "goal:in_time=0.7",
    deadline_s: float = DEADLINE_S,
    queue_s: float = 0.0,
) -> Ends:
    """Offer a multiple of the narrowest capacity for three seconds, then half of it."""
    rng, ends = np.random.default_rng(0), Ends()
    during = rng.uniform(0.0, OVERLOAD_S, int(load * CAPACITY_PER_S * OVERLOAD_S))
    after = rng.uniform(OVERLOAD_S, OVERLOAD_S + AFTER_S, int(0.5 * CAPACITY_PER_S * AFTER_S))
    times_s = np.sort(np.concatenate([during, after]))
    options = GatewayOptions(step_s=0.0, plan=plan, early_drop=True, queue_s=queue_s)  # type: ignore[arg-type]
    scheduler = SchedulerOptions(
        batch_limit=32,
        resident=("widest",),
        utilization_block=1.01,
        scale_trigger=1_000_000,
        order="deadline",
        early_drop=True,
        priorities=True,
    )
    observers: list[Observer] = [ends]  # type: ignore[list-item]
    scenario = Scenario(
        name="overload",
        cluster=CLUSTER,
        schedulers=(scheduler,) * len(CLUSTER),
        gateway=options,
        load=Load(rate_per_s=1.0, seconds=1.0),
        noise=ServiceNoise(batches=0.0, drift=0.0),
    )
    SimulatedCluster(
        scenario,
        Gateway(CLUSTER, make_router(router, CLUSTER, 0, None), options),
        RequestStream(times_s, examples=np.full(len(times_s), -1), deadline_s=deadline_s),
        observers=observers,
    ).run(OVERLOAD_S + AFTER_S, drain=True)
    return ends


@pytest.mark.parametrize("plan", ["network", pytest.param("segment", marks=pytest.mark.slow)])
@pytest.mark.parametrize("load", [pytest.param(2.0, marks=pytest.mark.slow), 8.0])
def test_goodput_stays_at_capacity_under_any_overload(load: float, plan: str) -> None:
    ends = overloaded(load, plan=plan)
    steady = [end_s for _, end_s in ends.answered if 1.5 <= end_s < OVERLOAD_S]
    assert len(steady) / (OVERLOAD_S - 1.5) >= 0.85 * CAPACITY_PER_S
    assert all(end_s <= arrival_s + DEADLINE_S for arrival_s, end_s in ends.answered), "no answer is late"
    refused = [one for one in ends.dropped if one[2] is DropReason.OVERLOADED]
    assert len(refused) >= 0.95 * len(ends.dropped), "little is dropped after it was admitted"
    assert all(arrival_s == end_s for arrival_s, end_s, _ in refused), "refusals are immediate"


def test_a_second_after_the_overload_nothing_is_refused() -> None:
    ends = overloaded(8.0)
    assert not [one for one in ends.dropped if one[0] > OVERLOAD_S + 1.0]


def test_without_deadlines_the_queue_stays_as_long_as_it_may_be() -> None:
    queue_s = 1.0
    ends = overloaded(4.0, deadline_s=NEVER_S, queue_s=queue_s)
    assert {reason for *_, reason in ends.dropped} == {DropReason.QUEUE_FULL}
    assert all(arrival_s == end_s for arrival_s, end_s, _ in ends.dropped), (
        "nothing that was taken is dropped"
    )
    waits_s = [end_s - arrival_s for arrival_s, end_s in ends.answered]
    assert 0.5 * queue_s < max(waits_s) < 1.5 * queue_s
    steady = [end_s for _, end_s in ends.answered if 1.5 <= end_s < OVERLOAD_S]
    assert len(steady) / (OVERLOAD_S - 1.5) >= 0.85 * CAPACITY_PER_S
