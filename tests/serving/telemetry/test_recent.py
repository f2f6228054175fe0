"""Recent figures: percentiles from counts, and what is older than the window is forgotten."""

import numpy as np
import pytest

from slimsched.serving.domain.model import outlines
from slimsched.serving.domain.request import Request
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.telemetry.live_view import Recent, RecentFigures, Stages

MODELS = load_scenario("paper").cluster.models


def figures_of(*answers: tuple[float, float, int], now_s: float = 0.0) -> RecentFigures:
    """The figures over the last four seconds after these answers: when, their latency, how many."""
    recent = Recent(MODELS, Stages(outlines(MODELS)), window_s=4.0, servers=1)
    for at_s, latency_s, count in answers:
        request = Request(id=0, arrival_s=at_s - latency_s, path=(3, 3, 3, 3), count=count)
        recent.answered(at_s, request, count, 0.8)
    return recent.figures(now_s)


def test_percentiles_are_within_one_per_cent_of_the_exact_ones() -> None:
    values = np.random.default_rng(0).lognormal(-4.0, 1.0, size=20_000)
    found = figures_of(*((0.0, float(value), 1) for value in values))
    exact = np.percentile(values, (50, 95, 99))
    assert (found.latency_p50_s, found.latency_p95_s, found.latency_p99_s) == pytest.approx(exact, rel=0.012)


def test_a_value_counts_as_often_as_it_was_seen() -> None:
    found = figures_of((0.0, 0.01, 98), (0.0, 1.0, 2))
    assert (found.latency_p50_s, found.latency_p99_s) == pytest.approx((0.01, 1.0), rel=0.012)


def test_old_values_are_forgotten() -> None:
    answers = (0.0, 0.5, 10), (5.0, 0.002, 1)
    assert figures_of(*answers, now_s=5.0).latency_p99_s == pytest.approx(0.002, rel=0.012)
    gone = figures_of(*answers, now_s=10.0)
    assert (gone.latency_p50_s, gone.latency_p99_s, gone.latency_mean_s) == (None, None, None)


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e9])
def test_values_outside_the_steps_count_at_their_ends(value: float) -> None:
    middle = figures_of((0.0, value, 1)).latency_p50_s
    assert middle is not None
    assert 1e-5 <= middle < 8_000
