"""Measured delays are repeated in the order in which they were measured."""

import pytest

from slimsched.serving.domain.delays import Delays
from slimsched.serving.domain.service_cost import ServiceCost

MEASURED = Delays(at_s=(0.1, 0.5, 0.6), delay_s=(1.0, 2.0, 3.0), length_s=1.0)


@pytest.mark.parametrize(
    ("now_s", "delay_s"),
    [(0.0, 1.0), (0.29, 1.0), (0.31, 2.0), (0.54, 2.0), (0.56, 3.0), (0.99, 3.0), (7.31, 2.0)],
)
def test_the_nearest_delay_is_repeated_again_and_again(now_s: float, delay_s: float) -> None:
    assert MEASURED.of(now_s) == delay_s


def test_a_delay_may_be_the_same_always() -> None:
    assert Delays.always(0.25).of(3.0) == Delays.always(0.25).of(4.0) == 0.25
    assert Delays().of(1.0) == 0.0


def test_a_pace_may_be_finer_than_a_tenth_of_a_second() -> None:
    cost = ServiceCost(pace=(1.0, 3.0), pace_s=0.01)
    assert [cost.latency_s(1.0, now_s) for now_s in (0.005, 0.015, 0.025)] == [1.0, 3.0, 1.0]
