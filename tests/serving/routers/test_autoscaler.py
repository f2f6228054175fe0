"""The autoscaler: load and time in, the next step out."""

import itertools

import pytest

from cluster import requests, small_cluster, toy_model
from slimsched.core.config import ConfigError
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import GatewayOptions, RequestsArrived
from slimsched.serving.routers.autoscaler import (
    AutoscaleOptions,
    Autoscaler,
    ReportedLoad,
    Scale,
    load_of,
    together,
)
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.registry import make_router

OPTIONS = AutoscaleOptions(
    min=1, max=4, up_backlog_s=0.5, up_after_s=1.0, down_idle_s=10.0, cooldown_s=5.0
).limited_to(4)
CROWDED = ReportedLoad(backlog_s=3.0, utilization=1.0)
EASY = ReportedLoad(backlog_s=0.0, utilization=0.1)


def steps(
    load: ReportedLoad, *, until_s: float, wanted: int = 2, autoscaler: Autoscaler | None = None
) -> list[Scale]:
    """Every step taken when a load stays, each server up at once."""
    machine, found, now_s = autoscaler or Autoscaler(OPTIONS), [], 0.0
    while now_s <= until_s:
        step = machine.decide(load, wanted=wanted, up=wanted, now_s=now_s)
        if step is not None:
            found.append(step)
            wanted = step.servers
        now_s += 0.25
    return found


def test_a_backlog_that_lasts_brings_one_server_after_the_other_up_to_the_most() -> None:
    assert [step.servers for step in steps(CROWDED, until_s=60.0)] == [3, 4]


def test_a_backlog_that_passes_brings_none() -> None:
    machine = Autoscaler(OPTIONS)
    for number in range(40):
        load = CROWDED if number % 4 else EASY
        assert machine.decide(load, wanted=2, up=2, now_s=0.3 * number) is None


def test_a_missed_goal_counts_as_much_as_a_backlog_and_is_the_reason() -> None:
    (step, *_) = steps(ReportedLoad(utilization=0.9, missed="p99 80 ms, goal 60 ms"), until_s=2.0)
    assert step == Scale(servers=3, reason="p99 80 ms, goal 60 ms")


def test_idle_servers_leave_one_at_a_time_down_to_the_least() -> None:
    found = steps(EASY, until_s=100.0, wanted=4)
    assert [step.servers for step in found] == [3, 2, 1]
    assert found[0].reason == "idle for 10 s"


def test_nobody_leaves_when_the_others_could_not_carry_the_load_at_ease() -> None:
    assert not steps(ReportedLoad(utilization=0.5), until_s=100.0, wanted=2)


def test_no_step_is_taken_while_a_server_is_still_coming_up() -> None:
    machine = Autoscaler(OPTIONS)
    assert not [1 for t in range(40) if machine.decide(CROWDED, wanted=3, up=2, now_s=t)]


def test_steps_keep_their_distance() -> None:
    machine, times, wanted = Autoscaler(OPTIONS), [], 1
    for tick in range(80):
        if (step := machine.decide(CROWDED, wanted=wanted, up=wanted, now_s=0.25 * tick)) is not None:
            times.append(0.25 * tick)
            wanted = step.servers
    assert all(later - earlier >= OPTIONS.cooldown_s for earlier, later in itertools.pairwise(times))


def test_fewer_than_the_least_is_mended_at_once() -> None:
    step = Autoscaler(OPTIONS).decide(EASY, wanted=0, up=0, now_s=0.0)
    assert step is not None
    assert step.servers == 1


def test_several_gateways_are_one_load() -> None:
    load = together(
        [
            ReportedLoad(backlog_s=0.2, utilization=0.5),
            ReportedLoad(backlog_s=0.3, utilization=0.5, missed="x"),
        ]
    )
    assert load == ReportedLoad(backlog_s=0.5, utilization=0.5, missed="x")


@pytest.mark.parametrize(("least", "most"), [(0, 2), (3, 2), (1, 5)])
def test_limits_that_make_no_sense_are_refused(least: int, most: int) -> None:
    with pytest.raises(ConfigError, match="give 1 ≤ min ≤ max ≤ servers"):
        AutoscaleOptions(min=least, max=most).limited_to(4)


class Answers:
    """A gateway with a request in it, whose models answer as they are told."""

    def __init__(self, spec: str) -> None:
        cluster = small_cluster(models=[toy_model("one"), toy_model("two")])
        self.router = make_router(spec, cluster, 0)
        assert isinstance(self.router, GuardedRouter)
        self.gateway = Gateway(cluster, self.router, GatewayOptions())
        self.gateway.handle(RequestsArrived(requests=requests(1)), now_s=0.0)

    def note(self, model: int, *, latency_s: float, accuracy: float) -> None:
        for last in (False, True):
            self.router.router.models[model].meter.note(latency_s, 100, accuracy, last=last)


@pytest.mark.parametrize("model", [0, 1])
def test_the_goal_of_any_model_can_be_missed(model: int) -> None:
    at = Answers("goal[accuracy>=75, p99<=50ms]")
    assert load_of(at.gateway).missed == ""
    at.note(model, latency_s=0.08, accuracy=0.9)
    assert load_of(at.gateway).missed.startswith("p99 8")
    at = Answers("goal[accuracy>=75]")
    at.note(model, latency_s=0.08, accuracy=0.7)
    assert load_of(at.gateway).missed == "accuracy 70.0 %, goal 75.0 %"
