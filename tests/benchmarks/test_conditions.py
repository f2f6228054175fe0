"""Conditions of the paper's benchmarks: each can be run, and routers are compared at one p99."""

import sys
from pathlib import Path

import pytest

from slimsched.serving.learning.tune import Point
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "paper"))

from conditions import FRONTS, accuracy_at, conditions, standing, tries

PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=600.0, seconds=0.3)


def point(accuracy: float, p99_s: float, router: str, seed: int) -> Point:
    return Point(router=router, seed=seed, accuracy=accuracy, p99_s=p99_s, energy_j=0.0)


def test_conditions_are_at_least_eight_and_all_can_be_run() -> None:
    every = conditions(PAPER)
    assert len(every) >= 9
    runs = tries(every["as measured"], seed=1, seeds=5)
    assert len(runs) == 5 * sum(map(len, FRONTS.values()))
    for setting in (one for several in FRONTS.values() for one in several):
        make_router(setting, PAPER.cluster, seed=0)


def test_routers_stand_by_their_accuracy_at_the_p99_that_half_of_them_reach() -> None:
    quick = {name: 0.05 + 0.01 * number for number, name in enumerate(FRONTS)}
    points = [
        point(0.70 + 0.01 * number + 0.001 * step, quick[name] + 0.05 * step, settings[step], seed)
        for number, (name, settings) in enumerate(FRONTS.items())
        for step in range(len(settings))
        for seed in range(3)
    ]
    result = standing("calm", points)
    assert result.p99_s == pytest.approx(max(0.075, 1.05 * sorted(quick.values())[len(quick) // 2]))
    middle = len(FRONTS) // 2
    assert [name for name, mean in result.accuracy.items() if mean is None] == list(FRONTS)[middle + 1 :]
    assert result.best == list(FRONTS)[middle]
    assert result.lead.value > 0.0


def test_between_two_settings_a_front_is_a_line_and_before_the_quickest_it_is_not_there() -> None:
    points = [
        point(accuracy, p99_s, "sed", 0) for accuracy, p99_s in ((0.72, 0.04), (0.75, 0.1), (0.74, 0.2))
    ]
    assert accuracy_at(points, 0.07) == pytest.approx(0.735)
    assert accuracy_at(points, 1.0) == 0.75
    assert accuracy_at(points, 0.03) is None
