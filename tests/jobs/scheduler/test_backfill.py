"""Backfill: a job passes others only if by all time limits nobody starts later."""

from math import inf

import pytest

from jobs.workloads import SMALL, job, news, simulation
from slimsched.jobs.policies.baselines import Backfill
from slimsched.jobs.scheduler.gpus import FreeGpus, Slot, StartPlan
from slimsched.jobs.scheduler.messages import StartJob


def starts(*jobs) -> dict[str, float]:
    log = simulation(Backfill(interval_s=10.0, resolution_s=1.0), jobs).run()
    return {entry.job_id: at_s for at_s, entry in news(log) if isinstance(entry, StartJob)}


def gang(name: str, gpus: int, limit_s: float | None, *, at_s: float = 0.0, service_s: float = 100.0):
    return job(name, gpus, at_s=at_s, service_s=service_s, model="", limit_s=limit_s)


def test_a_short_job_fills_the_gap_before_a_wide_one() -> None:
    assert SMALL.gpus == 16
    found = starts(
        gang("first", 12, 100.0),
        gang("wide", 16, 100.0, at_s=1.0),
        gang("short", 4, 50.0, at_s=2.0, service_s=50.0),
    )
    assert found["short"] == pytest.approx(12.0, abs=10.0)
    assert found["wide"] == 100.0


@pytest.mark.parametrize("limit_s", [200.0, None])
def test_a_job_that_might_last_too_long_does_not_pass(limit_s) -> None:
    found = starts(
        gang("first", 12, 100.0),
        gang("wide", 16, 100.0, at_s=1.0),
        gang("long", 4, limit_s, at_s=2.0, service_s=50.0),
    )
    assert found["wide"] == 100.0
    assert found["long"] == 200.0


def test_a_job_passes_on_gpus_that_the_one_before_it_will_not_need() -> None:
    found = starts(
        gang("first", 12, 100.0),
        gang("next", 12, 100.0, at_s=1.0),
        gang("beside", 4, None, at_s=2.0, service_s=500.0),
    )
    assert found["beside"] <= 12.0
    assert found["next"] == 100.0


def plan(*ends: tuple[float, int, int]) -> StartPlan:
    """A plan at 10 s on the small cluster, whose machines are full but for what `ends` leaves."""
    free = FreeGpus(SMALL)
    for machine in SMALL.machines:
        free.take(((machine.name, machine.gpus),))
    return StartPlan(10.0, free, ends, 60.0)


def test_jobs_that_end_close_together_count_as_ending_at_the_last_of_them() -> None:
    full = plan((50.0, 0, 4), (70.0, 1, 4), (200.0, 2, 4), (inf, 3, 4))
    assert full.find(4, 1, 100.0) == Slot(70.0, 170.0, (0,))
    assert full.find(4, 3, 100.0) == Slot(200.0, 300.0, (0, 1, 2))
    assert full.find(4, 4, 100.0) is None


def test_a_planned_job_reserves_whole_machines_in_whole_minutes() -> None:
    full = plan((50.0, 0, 2), (70.0, 1, 4), (200.0, 2, 4))
    full.reserve(Slot(70.0, 170.0, (0,)))
    assert full.blocked(0.0, 59.0) == set()
    assert full.blocked(10.0, 60.0) == full.blocked(119.0, 500.0) == {0}
    assert full.blocked(120.0, 500.0) == set()
    # two GPUs of the first machine would be free at 50 s, but another job has all of it by then
    assert full.find(2, 1, 100.0) == Slot(70.0, 170.0, (1,))
