"""What batches cost in service is learned from finished batches, and prices follow it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slimsched.serving.domain.profile import ServiceCost
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import LearnedCost, Observation
from slimsched.serving.gateway.prices import CostToGo
from slimsched.serving.routers.goal import BatchCharge
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

LAPTOP = load_scenario("laptop")
MODEL = LAPTOP.cluster.models[0]


def learned(overhead_s: float, slowdown: float, noise: float = 0.0, batches: int = 400) -> LearnedCost:
    cost, rng = LearnedCost(), np.random.default_rng(1)
    for profiled_s in rng.uniform(0.005, 0.08, batches):
        busy_s = (overhead_s + slowdown * profiled_s) * rng.uniform(1.0 - noise, 1.0 + noise)
        cost.note(float(profiled_s), float(busy_s), 16, further=False)
    return cost


@given(overhead_s=st.floats(0.0, 0.01), slowdown=st.floats(0.5, 2.0))
def test_it_finds_the_constant_and_the_factor(overhead_s: float, slowdown: float) -> None:
    cost = learned(overhead_s, slowdown)
    assert cost.overhead_s == pytest.approx(overhead_s, rel=0.15, abs=4e-4)
    assert cost.slowdown == pytest.approx(slowdown, rel=0.1)


def test_noise_of_a_fifth_and_a_pause_now_and_then_change_little() -> None:
    cost = learned(0.003, 1.2, noise=0.2)
    assert cost.overhead_s == pytest.approx(0.003, abs=0.001)
    before_s = cost.overhead_s + 0.03 * cost.slowdown
    cost.note(0.03, 2.0, 16, further=False)
    assert cost.overhead_s + 0.03 * cost.slowdown < 1.03 * before_s


def test_batches_that_are_all_alike_show_a_slowdown_and_no_overhead() -> None:
    cost = LearnedCost()
    for _ in range(500):
        cost.note(0.02, 0.03, 16, further=False)
    assert cost.slowdown == pytest.approx(1.5, rel=0.02)
    assert cost.overhead_s < 5e-4


def test_as_long_as_batches_take_what_their_profile_says_nothing_is_charged() -> None:
    cost = learned(0.0, 1.0)
    assert (cost.overhead_s, cost.slowdown) == pytest.approx((0.0, 1.0), abs=1e-9)
    assert cost.first_s == cost.further_s == pytest.approx(0.0, abs=1e-9)


def test_what_an_example_pays_depends_on_how_many_share_its_batch() -> None:
    cost = learned(0.004, 1.0)
    for _ in range(500):
        cost.note(0.02, 0.024, 4, further=True)
    assert cost.first_s == pytest.approx(cost.overhead_s / 16, rel=0.05)
    assert cost.further_s == pytest.approx(cost.overhead_s / 4, rel=0.05)


def test_a_gateway_learns_the_cost_of_a_simulated_cluster_while_it_serves() -> None:
    rate = 2.0 * capacity_per_s(LAPTOP.cluster, MODEL.spec.widest)
    slow = replace(LAPTOP, costs=(ServiceCost(overhead_s=0.004),) * len(LAPTOP.cluster))
    gateway = Gateway(LAPTOP.cluster, make_router("goal", LAPTOP.cluster, 0, None), LAPTOP.gateway)

    class Listener:
        def observe(self, now_s: float, machine: str, event: object, commands: object) -> None:
            if type(event).__name__ == "SegmentFinished":
                gateway.costs.ran(event, LAPTOP.cluster)  # type: ignore[arg-type]

    simulate(slow.with_load(rate_per_s=rate, seconds=4.0), "goal:sure=true", observers=(Listener(),))
    for cost in gateway.costs.servers:
        assert cost is not None
        assert cost.overhead_s == pytest.approx(0.004, abs=0.0015)
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
