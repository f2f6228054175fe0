"""What happened to jobs, from the entries of a run."""

from jobs.workloads import SMALL, job
from slimsched.jobs.scheduler.messages import (
    JobFinished,
    JobFoundRunning,
    JobSubmitted,
    Rebuilt,
    StartFailed,
    StartJob,
)
from slimsched.jobs.telemetry import histories

HERE, THERE = (("r0m0", 4),), (("r1m0", 4),)
AFRESH = Rebuilt(machines=SMALL.machines, reason="Slurm restarted")


def started(name: str, at_s: float):
    return (at_s, JobSubmitted(job=job(name, 4)), [StartJob(job_id=name, placement=HERE)])


def test_a_job_found_running_after_a_fresh_start_has_one_run() -> None:
    entries = [
        started("a", 0.0),
        (5.0, AFRESH, []),
        (5.0, JobFoundRunning(job=job("a", 4), placement=THERE), []),
        (9.0, JobFinished(job_id="a"), []),
    ]
    history = histories(entries)["a"]
    assert [(run.start_s, run.end_s, run.placement) for run in history.runs] == [(0.0, 9.0, THERE)]


def test_a_job_not_found_after_a_fresh_start_had_ended_by_then() -> None:
    history = histories([started("a", 0.0), (5.0, AFRESH, []), started("b", 7.0)])["a"]
    assert (history.finished_s, history.jct_s) == (5.0, 5.0)


def test_a_job_found_waiting_after_a_fresh_start_was_stopped() -> None:
    history = histories([started("a", 0.0), (5.0, AFRESH, []), started("a", 5.0)])["a"]
    assert [run.interrupted for run in history.runs] == [True]
    assert history.finished_s is None


def test_a_start_that_failed_is_no_run() -> None:
    history = histories([started("a", 0.0), (5.0, StartFailed(job_id="a", reason="full"), [])])["a"]
    assert history.runs == []
