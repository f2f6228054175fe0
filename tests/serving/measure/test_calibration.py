"""What serving costs beyond a profile is read off the batches of a run."""

import pytest

from cluster import MODEL, requests, small_cluster
from slimsched.serving.domain.profile import ALONE, ServiceCost
from slimsched.serving.domain.request import block_of
from slimsched.serving.gateway.messages import SegmentFinished
from slimsched.serving.measure.validate import ENOUGH, Calibration


def run_batches(
    calibration: Calibration, count: int, overhead_s: float, slowdown: float, pace: tuple[float, ...] = (1.0,)
) -> None:
    """One batch in the middle of each tenth of a second."""
    profile, keys = small_cluster().profiles[0], list(MODEL.keys.values())
    for number in range(count):
        key, size = keys[number % len(keys)], 1 + number % 8
        busy_s = pace[number % len(pace)] * (overhead_s + slowdown * profile.latency_s(key, size))
        blocks = (block_of(number, key, requests(size)),)
        done = SegmentFinished(server=0, choice=key.choice, blocks=blocks, size=size, busy_s=busy_s)
        calibration.observe(0.1 * number + 0.05 + busy_s, "gateway", done, [])


def test_overhead_and_slowdown_are_told_apart() -> None:
    calibration = Calibration(small_cluster())
    run_batches(calibration, 2 * ENOUGH, overhead_s=0.0002, slowdown=1.1)
    cost, *others = calibration.costs()
    assert cost.overhead_s == pytest.approx(0.0002)
    assert cost.slowdown == pytest.approx(1.1)
    assert others == [ALONE, ALONE], "servers that ran nothing cost what their profile says"


def test_slow_spells_are_kept_in_their_order() -> None:
    calibration = Calibration(small_cluster())
    run_batches(calibration, 4 * ENOUGH, overhead_s=0.0, slowdown=1.0, pace=(1.0, 1.0, 1.0, 1.5))
    pace = calibration.costs()[0].pace
    assert len(pace) == 4 * ENOUGH
    assert all(pace[n] > 1.2 * pace[n - 1] for n in range(3, len(pace), 4))
    assert ServiceCost(pace=(1.0, 2.0)).latency_s(0.01, now_s=0.35) == pytest.approx(0.02)


def test_a_handful_of_batches_says_nothing() -> None:
    calibration = Calibration(small_cluster())
    run_batches(calibration, ENOUGH - 1, overhead_s=1.0, slowdown=1.0)
    assert calibration.costs()[0] == ALONE
