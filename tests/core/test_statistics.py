"""Means that forget what was noted long ago."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimsched.core.statistics import Fading, follow


def test_nothing_noted_is_no_mean_and_no_error() -> None:
    assert Fading().mean == 0.0
    assert Fading(3.0, 2.0).mean == 3.0


@given(values=st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=50), share=st.floats(0.01, 0.5))
def test_a_mean_that_follows_goes_the_same_share_of_the_way_each_time(
    values: list[float], share: float
) -> None:
    followed, expected = follow(1.0, share), 1.0
    for value in values:
        followed.note(value)
        expected += share * (value - expected)
    assert followed.mean == pytest.approx(expected, abs=1e-9)


def test_what_is_noted_first_counts_in_full_where_nothing_was_assumed() -> None:
    mean = Fading(share=0.01)
    for value in (2.0, 4.0):
        mean.note(value)
    assert mean.mean == pytest.approx((0.99 * 2.0 + 4.0) / 1.99)


def test_time_takes_weight_from_all_alike_and_leaves_the_mean() -> None:
    rate = Fading()
    rate.note(30.0, 3.0)
    rate.fade(exp(-5.0))
    assert rate.mean == pytest.approx(10.0)
    rate.note(40.0, 1.0)
    assert rate.mean == pytest.approx(40.0, rel=0.02), "what was before hardly counts"
