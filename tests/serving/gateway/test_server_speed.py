"""How fast servers really are is learned from what they finish: batch times, pace and lateness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slimsched.serving.domain.profile import SHARE, BatchTime, ServerSpeed, ServiceCost
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import CostToGo
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.routers.goal import BatchCharge
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scheduler.scheduler import LAST_BATCH
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.simulated.run import simulate

LAPTOP = load_scenario("laptop")
MODEL = LAPTOP.cluster.models[0]


def learned(overhead_s: float, slowdown: float, noise: float = 0.0, batches: int = 400) -> BatchTime:
    batch, rng = BatchTime(SHARE), np.random.default_rng(1)
    for profiled_s in rng.uniform(0.005, 0.08, batches):
        took_s = (overhead_s + slowdown * profiled_s) * rng.uniform(1.0 - noise, 1.0 + noise)
        batch.note(float(profiled_s), float(took_s))
    return batch


@given(overhead_s=st.floats(0.0, 0.01), slowdown=st.floats(0.5, 2.0))
def test_it_finds_the_constant_and_the_factor(overhead_s: float, slowdown: float) -> None:
    batch = learned(overhead_s, slowdown)
    assert batch.overhead_s == pytest.approx(overhead_s, rel=0.15, abs=4e-4)
    assert batch.slowdown == pytest.approx(slowdown, rel=0.1)


def test_noise_of_a_fifth_and_a_pause_now_and_then_change_little() -> None:
    batch = learned(0.003, 1.2, noise=0.2)
    assert batch.overhead_s == pytest.approx(0.003, abs=0.001)
    before_s = batch.of(0.03)
    batch.note(0.03, 2.0)
    assert batch.of(0.03) < 1.03 * before_s


def test_batches_that_are_all_alike_show_a_slowdown_and_no_overhead() -> None:
    batch = BatchTime(SHARE)
    for _ in range(500):
        batch.note(0.02, 0.03)
    assert batch.slowdown == pytest.approx(1.5, rel=0.02)
    assert batch.overhead_s < 5e-4


def test_as_long_as_batches_take_what_their_profile_says_nothing_is_charged() -> None:
    batch = learned(0.0, 1.0)
    assert (batch.overhead_s, batch.slowdown) == pytest.approx((0.0, 1.0), abs=1e-9)


def test_a_server_that_slows_down_is_noticed_within_ten_batches_by_its_own_scheduler() -> None:
    gateways, schedulers = BatchTime(SHARE), BatchTime(LAST_BATCH)
    for number in range(200):
        for batch in (gateways, schedulers):
            batch.note(0.02, 0.02 if number < 190 else 0.04)
    assert schedulers.of(0.02) > 0.032
    assert gateways.of(0.02) < 0.023


def test_what_an_example_pays_depends_on_how_many_share_its_batch() -> None:
    speed, rng = ServerSpeed(), np.random.default_rng(1)
    for profiled_s in rng.uniform(0.005, 0.08, 400):
        speed.ran(float(profiled_s), 0.004 + float(profiled_s), 16, further=False)
    for _ in range(500):
        speed.ran(0.02, 0.024, 4, further=True)
    overhead_s = speed.batch.overhead_s
    assert speed.extra_s(further=False) == pytest.approx(overhead_s / 16, rel=0.05)
    assert speed.extra_s(further=True) == pytest.approx(overhead_s / 4, rel=0.05)
    assert ServerSpeed().extra_s(further=False) == ServerSpeed().extra_s(further=True) == 0.0


def test_a_server_that_takes_twice_as_long_has_half_the_pace() -> None:
    speed = ServerSpeed()
    for number in range(60):
        speed.began(number * 0.2)
        speed.worked_in_part(0.1, (number + 1) * 0.2, is_idle=True)
    assert speed.pace == pytest.approx(0.5, abs=0.02)
    speed.began(100.0)
    speed.lost()
    speed.worked(0.1, 200.0)
    assert speed.pace == pytest.approx(0.5, abs=0.02), "nobody counts the time of a server that died"


def test_blocks_that_take_twice_their_backlog_are_late_by_that_until_the_server_dies() -> None:
    speed = ServerSpeed()
    for _ in range(200):
        speed.returned(2.01, 1.0)
    assert speed.lateness.mean == pytest.approx(2.0, rel=0.01)
    speed.lost()
    assert speed.lateness.mean == 1.0


@pytest.mark.parametrize("slow", [1.0, 2.0])
def test_a_router_sees_the_same_in_training_as_where_clients_are_served(slow: float) -> None:
    """`slim serve` gives up what is late and training does not: nothing that is seen may depend on that."""
    paper = load_scenario("paper").with_load(seconds=0.6, rate_per_s=5000.0, deadline_s=30.0)
    paper = replace(paper, costs=(ServiceCost(slowdown=slow),) * len(paper.cluster))
    seen = []
    for options in (paper.gateway, replace(paper.gateway, early_drop=True)):
        gateway = Gateway(paper.cluster, make_router("ppo", paper.cluster, 0), options)
        SimulatedCluster(paper, gateway, paper.load.stream(0, paper.cluster.models)).run(0.6)
        seen.append(gateway.seen)
    training, service = seen
    assert training.backlog_s.max() > 0.0
    for name in ("lateness", "backlog_s", "outstanding", "slowdown", "first_extra_s", "further_extra_s"):
        assert getattr(training, name) == pytest.approx(getattr(service, name)), name


def test_a_gateway_learns_the_cost_of_a_simulated_cluster_while_it_serves() -> None:
    rate = 2.0 * capacity_per_s(LAPTOP.cluster, MODEL.spec.widest)
    slow = replace(LAPTOP, costs=(ServiceCost(overhead_s=0.004),) * len(LAPTOP.cluster))
    gateway = Gateway(LAPTOP.cluster, make_router("goal", LAPTOP.cluster, 0, None), LAPTOP.gateway)

    class Listener:
        def observe(self, now_s: float, machine: str, event: object, commands: object) -> None:
            if type(event).__name__ == "SegmentFinished":
                gateway.speeds.ran(event)  # type: ignore[arg-type]

    simulate(slow.with_load(rate_per_s=rate, seconds=4.0), "goal:sure=true", observers=(Listener(),))
    for speed in gateway.speeds.servers:
        assert speed.batch.overhead_s == pytest.approx(0.004, abs=0.0015)
    assert (gateway.seen.further_extra_s > gateway.seen.first_extra_s).all(), "their batches are smaller"


def test_the_dearer_a_batch_the_fewer_answers_go_on() -> None:
    full_s = LAPTOP.cluster.plan_s(MODEL, MODEL.spec.widest)
    work = {key: float(seconds[0] / full_s[0]) for key, seconds in LAPTOP.cluster.work_s.items()}
    cost_to_go = CostToGo(MODEL, [work], [work], sure=True)
    assert cost_to_go.escalation is not None
    own = np.array(cost_to_go.escalation.plans)[:, None]
    goes_on = []
    for further in (0.0, 0.05, 0.3):
        cost_to_go.charge(np.array([further]), per_leg=False)
        goes_on.append(int((cost_to_go.further(0.1, 0.0).plan[0] != own).sum()))
    assert goes_on[0] > goes_on[1] > goes_on[2]


def test_charges_of_further_plans_change_only_now_and_then() -> None:
    seen, full_s = Observation(2), np.array([0.01, 0.02])
    charge = BatchCharge(full_s, np.array([0, 1]))
    assert charge.first(seen, 1.0 / full_s) == 0.0
    seen.further_extra_s[:] = 0.001, 0.002
    found = charge.further(seen)
    assert found is not None
    assert found.tolist() == pytest.approx([0.1, 0.1])
    seen.further_extra_s[:] = 0.003
    assert charge.further(seen) is None, "too soon"
    seen.now_s = 5.0
    assert charge.further(seen) is not None
    seen.now_s, seen.further_extra_s[0] = 10.0, 0.0031
    assert charge.further(seen) is None, "too little has changed"
