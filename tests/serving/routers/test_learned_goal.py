"""Goals for the learned router: v follows a limit on p99 latency, or an accuracy floor."""

import pytest

from slimsched.serving.gateway.goal import Goal, parse_goal
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.learned import HeadPpoRouter, LearnedRouter
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

PAPER = load_scenario("paper", accuracy="paper")


def after(goal: str, *, age_s: float, choice: int) -> float:
    """The value after a second in which requests of this age are sent to their last segment."""
    router = LearnedRouter(PAPER.cluster, 1.0, parse_goal(goal))
    seen = Observation(3)
    seen.count, seen.arrival_rate_per_s = 16, 1e6
    for step in range(200):
        seen.now_s = 0.005 * step
        seen.arrival_s = seen.now_s - age_s
        router.begin(seen)
        for path in ((choice,) * 2, (choice,) * 3):
            seen.path, seen.segment = path, len(path)
            router.sent(seen, choice, is_narrowest=False)
    return router.v


def test_v_falls_above_a_limit_and_rises_below_it() -> None:
    assert after("p99<=60ms", age_s=0.2, choice=3) < 0.5
    assert after("p99<=60ms", age_s=0.01, choice=3) > 1.2


def test_v_rises_below_an_accuracy_floor_and_falls_above_it_where_energy_is_to_be_saved() -> None:
    assert after("accuracy>=75", age_s=0.05, choice=0) > 2.0
    assert after("accuracy>=75", age_s=0.05, choice=3) == 1.0
    assert after("accuracy>=73, min energy", age_s=0.05, choice=3) < 0.5


def test_a_router_with_another_goal_keeps_its_policy() -> None:
    router = make_router("ppo[p99<=60ms]", PAPER.cluster, seed=0)
    assert isinstance(router, GuardedRouter)
    assert router.router.goal.p99_s == pytest.approx(0.06)
    other = router.with_goal(Goal(min_accuracy=0.75))
    assert isinstance(other.router, HeadPpoRouter)
    assert other.router.goal == Goal(min_accuracy=0.75)


@pytest.mark.slow
def test_a_limit_on_p99_is_kept_on_the_papers_cluster() -> None:
    run = PAPER.with_load(seconds=5.0, warmup_s=2.5)
    assert simulate(run, "ppo[p99<=60ms]", seed=3).summary.latency_p99_s < 0.068
