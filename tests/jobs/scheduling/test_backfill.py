"""Backfill: a job passes others only if by all time limits nobody starts later."""

from math import inf

import pytest

from jobs.workloads import SMALL, job, news, simulation
from slimsched.jobs.scheduling.commands import StartJob
from slimsched.jobs.scheduling.free_later import FreeLater
from slimsched.jobs.scheduling.policies.backfill import Backfill


def starts(*jobs) -> dict[str, float]:
    log = simulation(Backfill(interval_s=10.0), jobs).run()
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


def test_free_gpus_are_planned_by_time() -> None:
    later = FreeLater(10.0, 2, [(50.0, 4), (5.0, 1), (inf, 8)])
    assert later.earliest_s(3, 100.0) == 10.0  # a job past its limit is as good as gone
    assert later.earliest_s(4, 10.0) == 50.0
    assert later.earliest_s(8, 1.0) == inf
    later.take(3, 10.0, 20.0)
    assert later.earliest_s(1, 5.0) == 30.0
    later.take(5, 50.0, inf)
    assert later.earliest_s(3, 30.0) == inf
    assert later.earliest_s(2, inf) == 30.0
