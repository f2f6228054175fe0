"""Routers compared from Python, with what the command line offers."""

import pytest

from slimsched.core.config import ConfigError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import parse_goal
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import compare

PAPER = load_scenario("paper").with_load(rate_per_s=1000.0, seconds=0.2)


class Widest:
    """Sends everything to the server with the least work, at the widest choice."""

    def __init__(self, cluster: Cluster) -> None:
        self.group = cluster.batch_limit

    def route(self, seen: Observation) -> Route | None:
        return Route(int((seen.backlog_s + seen.penalty_s).argmin()), seen.choices[-1], self.group, "widest")


def test_a_class_is_compared_like_a_router_that_is_named() -> None:
    told: list[str] = []
    rows = compare(PAPER, ["sed", Widest], seeds=2, progress=told.append)
    assert [row.summary.router for row in rows] == ["sed", "Widest"]
    assert told == ["sed", "sed", "Widest", "Widest"]
    assert "accuracy" in rows[1].ci95


def test_the_figures_do_not_depend_on_the_number_of_processes() -> None:
    alone, beside = (compare(PAPER, ["sed", Widest], workers=workers) for workers in (1, 2))
    for one, other in zip(alone, beside, strict=True):
        assert one.summary.accuracy == other.summary.accuracy
        assert one.summary.latency_p99_s == other.summary.latency_p99_s


def test_no_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="seeds is 0; give 1 or more"):
        compare(PAPER, ["sed"], seeds=0)


def test_a_scenario_is_read_with_other_models_and_another_goal() -> None:
    scenario = load_scenario("paper", models=["slimvit"], goal="accuracy>=70, min energy")
    assert [model.name for model in scenario.cluster.models] == ["slimvit"]
    assert scenario.goal == parse_goal("accuracy>=70, min energy")
