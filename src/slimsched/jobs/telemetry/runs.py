"""Folds the entries of a job run into runs: the stretches of time for which a gang held its GPUs."""

from collections.abc import Iterable

from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.scheduler.messages import (
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    LiveEvent,
    PreemptJob,
    Rebuilt,
    StartFailed,
    StartJob,
)
from slimsched.jobs.telemetry.entries import JobEntry


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


def histories(entries: Iterable[JobEntry]) -> dict[str, JobHistory]:
    """Tell what happened to every job, by id, in order of submission."""
    fold = _Histories()
    for now_s, event, commands in entries:
        fold.told(event, now_s)
        for command in commands:
            if isinstance(command, StartJob):
                fold.started[command.job_id] = (command.placement, now_s)
            elif isinstance(command, PreemptJob):
                fold.jobs[command.job_id].preemptions += 1
    for job_id, at_s in fold.lost.items():
        fold.finish(job_id, at_s)
    return fold.jobs


class _Histories:
    """The histories so far. `lost` are jobs that ran when a controller started afresh, and since when:
    a job that is then found neither running nor waiting had ended by that time."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobHistory] = {}
        self.started: dict[str, tuple[Placement, float]] = {}
        self.lost: dict[str, float] = {}

    def told(self, event: LiveEvent, now_s: float) -> None:
        """Take one event in."""
        if isinstance(event, JobSubmitted):
            self._submitted(event, now_s)
        elif isinstance(event, JobFinished):
            if event.job_id in self.jobs:
                self.finish(event.job_id, now_s)
        elif isinstance(event, JobPreempted):
            self._stop(event.job_id, now_s, event.served_s, interrupted=True)
        elif isinstance(event, JobFoundRunning):
            self._found_running(event, now_s)
        elif isinstance(event, StartFailed):
            self.started.pop(event.job_id, None)
        elif isinstance(event, Rebuilt):
            self.lost |= dict.fromkeys(self.started, now_s)

    def finish(self, job_id: str, now_s: float) -> None:
        """A job is done."""
        self._stop(job_id, now_s, self.jobs[job_id].job.service_s, interrupted=False)
        self.jobs[job_id].finished_s = now_s

    def _submitted(self, event: JobSubmitted, now_s: float) -> None:
        """A job is new here, or waits again after a fresh start."""
        self._known(event.job, now_s)
        if self.lost and self.lost.pop(event.job.id, None) is not None:
            self._stop(event.job.id, now_s, event.served_s, interrupted=True)

    def _found_running(self, event: JobFoundRunning, now_s: float) -> None:
        """A job runs already, or still, after a fresh start."""
        job_id = event.job.id
        self._known(event.job, now_s)
        self.lost.pop(job_id, None)
        since_s = self.started[job_id][1] if job_id in self.started else now_s
        self.started[job_id] = (event.placement, since_s)

    def _known(self, job: Job, now_s: float) -> None:
        if job.id not in self.jobs:
            self.jobs[job.id] = JobHistory(job=job, submitted_s=now_s, runs=[])

    def _stop(self, job_id: str, now_s: float, served_s: float, *, interrupted: bool) -> None:
        history = self.jobs[job_id]
        if job_id in self.started:
            placement, start_s = self.started.pop(job_id)
            history.runs.append(
                JobRun(
                    placement=placement,
                    start_s=start_s,
                    end_s=now_s,
                    served_s=served_s - history.served_s,
                    resumed=bool(history.runs),
                    interrupted=interrupted,
                )
            )
        history.served_s = served_s
