"""Routers that decide segment by segment may plan whole networks, and keep to loaded choices."""

from random import Random

import numpy as np
import pytest

from slimsched.serving.gateway.gateway import NetworkPlanner
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.routers.classic import DriftPlusPenaltyRouter, WarmRouter
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

PAPER = load_scenario("paper", accuracy="paper")
LAPTOP = load_scenario("laptop").with_load(seconds=3.0)


def new_head() -> Observation:
    seen = Observation(3)
    seen.count, seen.choices, seen.deadline_s = 16, (0, 1, 2, 3), 1.0
    return seen


@pytest.mark.parametrize("spec", ["sed", "drift-plus-penalty", "random", "lp", "ppo"])
def test_a_plan_names_every_segment_and_leaves_the_observation_as_it_was(spec: str) -> None:
    cluster = PAPER.cluster
    planner = NetworkPlanner(make_router(spec, cluster, seed=0), cluster.models)
    seen = new_head()
    seen.backlog_s[:] = (0.1, 0.0, 0.2)
    before = {name: np.copy(value) for name, value in vars(seen).items() if isinstance(value, np.ndarray)}
    route = planner.route(seen)
    assert route is not None
    assert cluster.models[0].tree.is_plan((route.choice, *route.ahead))
    assert (seen.segment, seen.source, seen.path) == (0, -1, ())
    for name, value in before.items():
        if name != "lateness":
            assert np.array_equal(getattr(seen, name), value), name


def test_what_comes_next_is_decided_for_the_server_just_chosen() -> None:
    seen, asked = new_head(), []

    class Watching(DriftPlusPenaltyRouter):
        def route(self, seen: Observation) -> Route:
            asked.append((seen.segment, seen.source, np.flatnonzero(np.isfinite(seen.penalty_s)).tolist()))
            return super().route(seen)

    route = NetworkPlanner(Watching(PAPER.cluster, Random(0)), PAPER.cluster.models).route(seen)
    assert route is not None
    assert asked == [(0, -1, [0, 1, 2])] + [(n, route.server, [route.server]) for n in (1, 2, 3)]


def test_a_stated_plan_is_left_alone() -> None:
    seen = new_head()
    seen.plan = 5
    planner = NetworkPlanner(make_router("sed", PAPER.cluster, seed=0), PAPER.cluster.models)
    route = planner.route(seen)
    assert route is not None
    assert route.ahead == ()


def test_drift_plus_penalty_needs_a_quarter_of_the_blocks_where_networks_are_planned() -> None:
    whole = simulate(LAPTOP, "drift-plus-penalty").summary
    assert whole.completed > 0
    assert whole.slo_attainment > 0.95


def test_a_busy_server_is_not_asked_for_a_choice_it_would_have_to_load() -> None:
    class Always:
        choice = 0

        def route(self, seen: Observation) -> Route:
            return Route(0, self.choice, 16, "always")

    inner = Always()
    router = WarmRouter(PAPER.cluster, inner)
    seen = new_head()
    seen.utilization[:] = 1.0
    assert router.route(seen) == Route(0, 0, 16, "always")  # nothing is loaded: something must be
    inner.choice = 3
    route = router.route(seen)
    assert route is not None
    assert route.choice == 0
    seen.utilization[:] = 0.5
    route = router.route(seen)
    assert route is not None
    assert route.choice == 3
