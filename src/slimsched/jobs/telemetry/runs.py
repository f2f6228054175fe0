"""Folds a job log into runs: the stretches of time a gang held its GPUs."""

from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.scheduling.commands import PreemptJob, StartJob
from slimsched.jobs.scheduling.events import (
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    StartFailed,
)
from slimsched.jobs.telemetry.log import JobLog


class JobRun(Struct, frozen=True, kw_only=True):
    """One stretch from start to stop; `served_s` is the ideal service it brought."""

    placement: Placement
    start_s: float
    end_s: float
    served_s: float
    resumed: bool
    interrupted: bool


class JobHistory(Struct, kw_only=True):
    """All that happened to one job."""

    job: Job
    submitted_s: float
    runs: list[JobRun]
    finished_s: float | None = None
    preemptions: int = 0
    served_s: float = 0.0

    @property
    def jct_s(self) -> float:
        """Job completion time; only for a finished job."""
        assert self.finished_s is not None
        return self.finished_s - self.submitted_s

    @property
    def wait_s(self) -> float:
        """Time without GPUs; only for a finished job."""
        return self.jct_s - sum(run.end_s - run.start_s for run in self.runs)


def histories(log: JobLog) -> dict[str, JobHistory]:
    """What happened to every job, by id, in order of submission."""
    jobs: dict[str, JobHistory] = {}
    started: dict[str, tuple[Placement, float]] = {}

    def stop(job_id: str, at_s: float, served_s: float, *, interrupted: bool) -> None:
        history = jobs[job_id]
        if job_id in started:
            placement, start_s = started.pop(job_id)
            history.runs.append(
                JobRun(
                    placement=placement,
                    start_s=start_s,
                    end_s=at_s,
                    served_s=served_s - history.served_s,
                    resumed=bool(history.runs),
                    interrupted=interrupted,
                )
            )
        history.served_s = served_s

    for at_s, entry in log:
        kind = type(entry)
        if kind is StartJob:
            started[entry.job_id] = (entry.placement, at_s)  # type: ignore[union-attr]
        elif kind is JobSubmitted or kind is JobFoundRunning:
            assert isinstance(entry, JobSubmitted | JobFoundRunning)
            jobs[entry.job.id] = JobHistory(job=entry.job, submitted_s=at_s, runs=[])
            if isinstance(entry, JobFoundRunning):
                started[entry.job.id] = (entry.placement, at_s)
        elif isinstance(entry, JobFinished):
            stop(entry.job_id, at_s, jobs[entry.job_id].job.service_s, interrupted=False)
            jobs[entry.job_id].finished_s = at_s
        elif isinstance(entry, JobPreempted):
            stop(entry.job_id, at_s, entry.served_s, interrupted=True)
        elif isinstance(entry, PreemptJob):
            jobs[entry.job_id].preemptions += 1
        elif isinstance(entry, StartFailed):
            started.pop(entry.job_id, None)
    return jobs
