"""The arrival rate, followed closely where many come."""

from math import exp

import pytest

from slimsched.serving.routers.goal import Rate


def follow(rate: Rate, per_s: float, mean_per_s: float, seconds: float) -> tuple[float, float]:
    """Feed a steady stream as the gateway counts it, in steps of 5 ms."""
    found = 0.0
    for _ in range(round(seconds / 0.005)):
        mean_per_s = mean_per_s * exp(-0.005) + per_s * 0.005
        found = rate.after(mean_per_s, 0.005)
    return found, mean_per_s


def test_a_burst_is_seen_within_a_few_tenths_of_a_second() -> None:
    rate = Rate()
    calm, mean = follow(rate, 10_000.0, 0.0, 3.0)
    burst, mean = follow(rate, 30_000.0, mean, 0.3)
    assert calm == pytest.approx(10_000.0, rel=0.03)
    assert burst > 28_000.0
    assert mean < 16_000.0


def test_where_few_come_it_looks_back_for_longer() -> None:
    rate = Rate()
    _, mean = follow(rate, 200.0, 0.0, 3.0)
    burst, _ = follow(rate, 600.0, mean, 0.3)
    assert burst < 400.0


def test_after_a_silence_what_was_before_does_not_count() -> None:
    rate = Rate()
    _, mean = follow(rate, 200.0, 0.0, 3.0)
    mean *= exp(-0.5)
    rate.after(mean, 0.5)
    burst, _ = follow(rate, 1200.0, mean, 0.25)
    assert burst > 800.0


@pytest.mark.parametrize("passed_s", [0.0, 0.5])
def test_a_single_request_to_a_slow_model_is_no_overload(passed_s: float) -> None:
    capacity_per_s = 12.0
    assert Rate().after(1.0, passed_s, capacity_per_s) < capacity_per_s
    assert Rate().after(1.0, 0.5) > capacity_per_s, "a fast one is followed closely"
