"""What a router can tell of its own success."""

import pytest

from slimsched.serving.routers.goal_following import GoalMeter


def test_the_tail_counts_the_last_segment_as_long_as_the_one_before() -> None:
    meter = GoalMeter()
    for number in range(1000):
        slow = number % 50 == 0
        meter.note(0.02, 16, 0.0, last=False)
        meter.note(0.06 if slow else 0.03, 16, 0.75, last=True)
    assert meter.latency_s("p99") == pytest.approx(0.06 * (2.0 - 0.02 / 0.0306), rel=0.03)
    assert meter.accuracy == pytest.approx(0.75)


def test_a_tail_that_is_over_is_forgotten_after_two_windows() -> None:
    meter = GoalMeter()
    meter.note(0.1, 16, 0.0, last=False)
    meter.note(0.5, 16, 0.75, last=True)
    for _ in range(30):
        meter.fade(0.1)
        meter.note(0.01, 16, 0.0, last=False)
        meter.note(0.02, 16, 0.75, last=True)
    assert meter.latency_s("p99") is not None
    assert meter.latency_s("p99") < 0.05


def test_nothing_is_said_before_anything_was_sent() -> None:
    assert GoalMeter().latency_s("p99") is None
    assert GoalMeter().accuracy is None
