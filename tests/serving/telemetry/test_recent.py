"""Recent figures: percentiles from counts, and what is older than the window is forgotten."""

import numpy as np
import pytest

from slimsched.serving.telemetry.live_view import RecentSpread


def test_percentiles_are_within_one_per_cent_of_the_exact_ones() -> None:
    values = np.random.default_rng(0).lognormal(-4.0, 1.0, size=20_000)
    spread = RecentSpread()
    for value in values:
        spread.add(0.0, float(value), 1)
    exact = np.percentile(values, (50, 95, 99))
    assert spread.percentiles(50, 95, 99) == pytest.approx(exact, rel=0.012)


def test_a_value_counts_as_often_as_it_was_seen() -> None:
    spread = RecentSpread()
    spread.add(0.0, 0.01, 98)
    spread.add(0.0, 1.0, 2)
    assert spread.percentiles(50, 99) == pytest.approx((0.01, 1.0), rel=0.012)


def test_old_values_are_forgotten() -> None:
    spread = RecentSpread()
    spread.add(0.0, 0.5, 10)
    spread.add(5.0, 0.002, 1)
    spread.forget(1.0)
    assert spread.percentiles(99) == pytest.approx((0.002,), rel=0.012)
    spread.forget(6.0)
    assert spread.percentiles(50, 99) == (None, None)


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e9])
def test_values_outside_the_steps_count_at_their_ends(value: float) -> None:
    spread = RecentSpread()
    spread.add(0.0, value, 1)
    (middle,) = spread.percentiles(50)
    assert middle is not None
    assert 1e-5 <= middle < 8_000
