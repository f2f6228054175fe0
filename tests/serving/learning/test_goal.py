"""The goal router: cost to go, prices, stated goals, the guard, and every spec the registry knows."""

from collections.abc import Callable
from itertools import product
from pathlib import Path as FilePath

import numpy as np
import pytest

from cluster import MODEL, path, small_cluster, widths_of
from slimsched.core.config import ConfigError, UnknownNameError
from slimsched.models.spec import START, Path
from slimsched.models.width import WIDTHS
from slimsched.serving.domain.request import Key
from slimsched.serving.gateway.goal import CostToGo, Goal
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.learning.tune import GoalTraining, from_vector, to_vector, train_goal
from slimsched.serving.routers.goal import GoalParameters
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

PAPER = load_scenario("paper", accuracy="paper")


def run(router: str, **load: float):  # type: ignore[no-untyped-def]
    return simulate(PAPER.with_load(**load), router).summary  # type: ignore[arg-type]


def width(key: Key) -> float:
    return WIDTHS[key.choice]


def test_cost_to_go_is_the_best_over_all_ways_to_go_on() -> None:
    work = {key: 0.01 * (1 + key.segment) * width(key) for key in MODEL.keys.values()}
    value, rest = CostToGo(MODEL, [work], [work]).at(2.0, 0.5, 0.0)
    so_far = path(0.5, 0.25)
    worth = {}
    for onward in product(range(len(WIDTHS)), repeat=2):
        plan = (*so_far, *onward)
        cost = sum(work[leg] for leg in MODEL.legs(plan)[2:])
        worth[onward] = (MODEL.quality.accuracy(plan) - 2.5 * cost, cost)
    best = max(worth.values())
    row = MODEL.tree.row[so_far]
    assert value[row, 0] == pytest.approx(best[0])
    assert rest[row, 0] == pytest.approx(best[1])


def test_a_floor_leaves_only_plans_that_reach_it() -> None:
    work = {key: width(key) for key in MODEL.keys.values()}
    table = CostToGo(MODEL, [work], [work])
    free, floored = table.at(5.0, 0.0, 0.0)[1][0, 0], table.at(5.0, 0.0, 0.755)[1][0, 0]
    reaching = [plan for plan in MODEL.tree.plans if MODEL.quality.accuracy(plan) >= 0.755]
    assert free == 4 * 0.25
    assert floored == min(sum(widths_of(plan)) for plan in reaching)


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_a_floor_means_the_same_whatever_the_model_weighs(weight: float) -> None:
    work = {key: width(key) for key in MODEL.keys.values()}
    plain, weighed = (
        CostToGo(model, [work], [work]).course((), 0, 5.0, 0.0, 0.755)
        for model in (MODEL, MODEL.numbered(0, weight=weight))
    )
    assert weighed == plain
    assert 0.755 <= MODEL.quality.accuracy(plain) < MODEL.quality.by_plan.max()


def test_at_an_easy_load_everything_is_served_wide() -> None:
    row = run("goal", rate_per_s=800.0, seconds=1.0)
    assert row.accuracy > 0.76


def test_far_above_the_full_width_capacity_every_request_is_still_served() -> None:
    row = run("goal", rate_per_s=25_000.0, seconds=1.0)
    assert row.slo_attainment > 0.9
    assert row.lost == row.duplicates == 0


@pytest.mark.slow
def test_a_limit_on_the_99th_percentile_is_kept_and_room_below_it_is_used() -> None:
    tight = run("goal[p99<=65ms]", rate_per_s=9200.0, seconds=3.0, warmup_s=1.5)
    loose = run("goal[p99<=130ms]", rate_per_s=9200.0, seconds=3.0, warmup_s=1.5)
    assert 0.85 * 0.065 < tight.latency_p99_s < 1.05 * 0.065
    assert 0.85 * 0.13 < loose.latency_p99_s < 1.05 * 0.13
    assert loose.accuracy > tight.accuracy


def test_gains_from_a_training_run_are_used_and_a_file_without_any_is_refused(tmp_path: FilePath) -> None:
    (tmp_path / "gains.json").write_text('{"parameters": {"wait": 0.05}}')
    made = make_router(f"goal:gains={tmp_path}/gains.json", PAPER.cluster, 0)
    assert isinstance(made, GuardedRouter)
    assert made.router.gains == GoalParameters(wait=0.05)
    with pytest.raises(ConfigError, match="slim router train goal"):
        make_router(f"goal:gains={tmp_path}/none.json", PAPER.cluster, 0)


@pytest.mark.parametrize("objective", ["energy", "latency"])
def test_the_objective_is_pushed_down_to_the_accuracy_floor(objective: str) -> None:
    low = run(f"goal[accuracy>=73, min {objective}]", rate_per_s=5000.0, seconds=3.0)
    high = run("goal", rate_per_s=5000.0, seconds=3.0)
    assert low.accuracy == pytest.approx(0.73, abs=0.006)
    assert low.energy_j_per_request < 0.6 * high.energy_j_per_request
    assert low.latency_mean_s < high.latency_mean_s


def test_a_request_can_ask_for_its_own_accuracy() -> None:
    made = make_router("goal", PAPER.cluster, 0)
    seen = Observation(3)
    seen.count, seen.arrival_rate_per_s, seen.min_accuracy = 16, 40_000.0, 0.764
    taken: Path = ()
    for segment in range(4):
        seen.segment, seen.previous, seen.path = segment, taken[-1] if taken else START, taken
        seen.source = 0 if taken else -1
        route = made.route(seen)
        assert route is not None
        taken = (*taken, route.choice)
    assert MODEL.quality.accuracy(taken) >= 0.764


@pytest.mark.parametrize("servers", [1, 2, 12, pytest.param(64, marks=pytest.mark.slow)])
def test_the_number_of_servers_is_free(servers: int) -> None:
    cluster = small_cluster(tuple(float(1 + n % 5) for n in range(servers)))
    seen = Observation(servers)
    seen.count, seen.arrival_rate_per_s = 8, 100.0
    seen.backlog_s[:] = np.linspace(0.02, 0.0, servers)
    route = make_router("goal", cluster, 0).route(seen)
    assert route is not None
    assert 0 <= route.server < servers


def test_dead_servers_are_never_chosen() -> None:
    made, seen = make_router("goal", PAPER.cluster, 0), Observation(3)
    seen.count, seen.arrival_rate_per_s = 8, 9000.0
    seen.set_alive(0, False)
    seen.backlog_s[1:] = 0.5
    for number in range(50):
        seen.now_s = 0.01 * number
        route = made.route(seen)
        assert route is not None
        assert route.server != 0


def test_an_input_out_of_range_goes_to_the_fallback_and_is_counted() -> None:
    made = make_router("goal", PAPER.cluster, 0)
    assert isinstance(made, GuardedRouter)
    seen = Observation(3)
    seen.count, seen.arrival_rate_per_s = 4, float("nan")
    route = made.route(seen)
    assert route is not None
    assert route.reason == "guard: out of range"
    assert made.counts == {"out of range": 1}


def test_queues_that_run_away_hand_over_until_they_are_short_again() -> None:
    made = make_router("goal", PAPER.cluster, 0)
    assert isinstance(made, GuardedRouter)
    seen = Observation(3)
    seen.count, seen.arrival_rate_per_s = 16, 5000.0
    reasons = []
    for number in range(32):
        seen.now_s = 0.15 * number
        seen.backlog_s[:] = 0.6 + 0.05 * number
        route = made.route(seen)
        reasons.append(route.reason if route else "")
    assert reasons[0] == "least price"
    assert reasons[-1] == "guard: queues grow"
    seen.now_s, seen.backlog_s[:] = 10.0, 0.01
    route = made.route(seen)
    assert route is not None
    assert route.reason == "least price"


def test_in_shadow_mode_the_fallback_decides_and_the_log_says_what_goal_would_do() -> None:
    made, seen = make_router("goal:shadow=1", PAPER.cluster, 0), Observation(3)
    assert isinstance(made, GuardedRouter)
    seen.count, seen.arrival_rate_per_s = 16, 9000.0
    route = made.route(seen)
    other = made.fallback.route(seen)
    assert route is not None
    assert other is not None
    assert (route.server, route.choice) == (other.server, other.choice)
    assert route.reason.startswith("shadow: the router would take server")
    assert sum(made.counts.values()) == 1


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("goal[min energy]", "needs an accuracy floor"),
        ("goal[min cost, accuracy>=70]", "min energy, min latency"),
        ("goal[accuracy>=high]", "is not understood"),
        ("goal[p99<=-5ms]", "is not understood"),
        ("goal[p99<=5ms", "brackets do not match"),
        ("goal:speed=3", "its options: shadow"),
        ("goal:wait=long", "give a number"),
        ("sed[p99<=5ms]", "follows no goal"),
    ],
)
def test_a_goal_without_meaning_is_refused_with_a_remedy(spec: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        make_router(spec, PAPER.cluster, 0)


def test_an_unknown_router_lists_the_learned_ones_too() -> None:
    with pytest.raises(UnknownNameError, match=r"ppo-efficient.*goal"):
        make_router("best", PAPER.cluster, 0)


def test_a_goal_beside_the_spec_is_for_routers_that_state_none_themselves() -> None:
    given = Goal(p99_s=0.05)
    for spec, goal in {"goal": given, "goal[p99<=80ms]": Goal(p99_s=0.08)}.items():
        made = make_router(spec, PAPER.cluster, 0, given)
        assert isinstance(made, GuardedRouter)
        assert made.router.goal == goal
    make_router("sed", PAPER.cluster, 0, given)


@pytest.mark.slow
def test_training_goes_from_parameters_to_parameters() -> None:
    assert from_vector(to_vector(GoalParameters())) == GoalParameters()
    report: list[float] = []
    note: Callable[..., None] = lambda generation: report.append(generation.best)  # noqa: E731
    options = GoalTraining(generations=1, population=4, scenarios=1, requests=300)
    one, two = (train_goal(PAPER, options, seed=0, workers=1, report=note) for _ in range(2))
    assert one == two
    assert len(report) == 2
