"""What serving costs beyond a profile is read off the batches of a run."""

import pytest

from cluster import block, small_cluster
from slimsched.domain.batch import Batch
from slimsched.domain.key import KEYS
from slimsched.domain.service_cost import ALONE
from slimsched.execution.live.calibration import ENOUGH, Calibration
from slimsched.scheduling.commands import RunBatch
from slimsched.scheduling.events import BatchFinished


def run_batches(calibration: Calibration, count: int, overhead_s: float, slowdown: float) -> None:
    profile = small_cluster().profiles[0]
    for number in range(count):
        key, size = list(KEYS.values())[number % len(KEYS)], 1 + number % 8
        busy_s = overhead_s + slowdown * profile.latency_s(key, size)
        batch = Batch(id=number, key=key, instance=0, blocks=(block(number, size),), size=size)
        done = BatchFinished(instance=0, busy_s=busy_s, energy_j=0.0)
        calibration.observe(0.0, "server-0", done, [RunBatch(batch=batch, why="")])


def test_overhead_and_slowdown_are_told_apart() -> None:
    calibration = Calibration(small_cluster())
    run_batches(calibration, 2 * ENOUGH, overhead_s=0.0002, slowdown=1.1)
    cost, *others = calibration.costs()
    assert cost.overhead_s == pytest.approx(0.0002)
    assert cost.slowdown == pytest.approx(1.1)
    assert others == [ALONE, ALONE], "servers that ran nothing cost what their profile says"


def test_a_handful_of_batches_says_nothing() -> None:
    calibration = Calibration(small_cluster())
    run_batches(calibration, ENOUGH - 1, overhead_s=1.0, slowdown=1.0)
    assert calibration.costs()[0] == ALONE
