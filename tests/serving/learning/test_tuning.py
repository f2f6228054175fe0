"""Tuning: equal budgets, fronts, and comparisons at equal p99."""

import pytest

from slimsched.core.config import UnknownNameError
from slimsched.serving.learning.tune import KNOBS, TUNING_SEED, Point, settings, tune
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario

PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=600.0, seconds=0.3)


def point(accuracy: float, p99_s: float, router: str = "sed", seed: int = 0) -> Point:
    return Point(router=router, seed=seed, accuracy=accuracy, p99_s=p99_s, energy_j=0.0)


@pytest.mark.parametrize("router", KNOBS)
def test_every_router_gets_the_same_number_of_settings_and_takes_each(router: str) -> None:
    tried = settings(router, 6)
    assert len(set(tried)) == 6
    for setting in tried:
        make_router(setting, PAPER.cluster, seed=0)


def test_a_router_without_knobs_is_named() -> None:
    with pytest.raises(UnknownNameError, match="router to tune"):
        settings("random", 4)


def test_the_front_leaves_out_what_another_setting_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [point(0.70, 0.05), point(0.72, 0.04), point(0.75, 0.1), point(0.74, 0.2)]
    monkeypatch.setattr("slimsched.serving.learning.tune.run", lambda tries, **options: points)
    best = tune(PAPER, "sed", budget=4, workers=1)
    assert [(one.accuracy, one.p99_s) for one in best] == [(0.72, 0.04), (0.75, 0.1)]


def test_tuning_uses_seeds_of_its_own() -> None:
    assert {one.seed for one in tune(PAPER, "drift-plus-penalty", budget=3, workers=1)} == {TUNING_SEED}
