"""Carries a job scheduler's commands out in simulated time: the driver of `slim jobs simulate`.

Progress is counted in ideal seconds. A gang's finish moves whenever its links get more or less crowded;
the old finish stays in the queue and is skipped when it comes up.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import assert_never

from slimsched.jobs.domain.job import Job
from slimsched.jobs.execution.simulated.failure import Checkpoint, Failure
from slimsched.jobs.execution.simulated.shared_links import RunningGang, SharedLinks
from slimsched.jobs.scheduling.commands import PreemptJob, StartJob, WakeAt
from slimsched.jobs.scheduling.events import (
    Event,
    JobFinished,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    Wake,
)
from slimsched.jobs.scheduling.scheduler import JobScheduler
from slimsched.jobs.scheduling.sensitivity import Sensitivity
from slimsched.jobs.telemetry.log import JobLog

PACE_TOLERANCE = 0.005
"""A gang's finish is moved when its pace changes by more than this share."""


class SimulatedJobs:
    """A cluster in simulated time under one scheduler."""

    def __init__(
        self,
        *,
        scheduler: JobScheduler,
        sensitivity: Sensitivity,
        jobs: Sequence[Job],
        checkpoint: Checkpoint | None = None,
        failures: Sequence[Failure] = (),
    ) -> None:
        self.scheduler = scheduler
        self.log: JobLog = []
        self.events = 0
        self.now_s = 0.0
        self.sensitivity = sensitivity
        self._links = SharedLinks(sensitivity)
        self._checkpoint = checkpoint or Checkpoint()
        self._jobs = {job.id: job for job in jobs}
        self._arrivals = sorted(jobs, key=attrgetter("arrival_s"))
        self._running: dict[str, RunningGang] = {}
        self._served_s: dict[str, float] = {}
        self._failed: set[str] = set()
        self._queue: list[tuple[float, int, Event | RunningGang, int]] = []
        self._seq = 0
        self._wake_s = float("inf")
        self._left = len(self._arrivals)
        for failure in failures:
            self._push(failure.at_s, NodeDown(machine=failure.machine))
            self._push(failure.at_s + failure.repair_s, NodeUp(machine=failure.machine))

    def run(self, *, until_s: float = float("inf"), progress: Callable[[int], None] | None = None) -> JobLog:
        """Run until all jobs are done, or until a time; returns the log."""
        arrivals, queue = self._arrivals, self._queue
        arrived, jobs = 0, len(self._arrivals)
        while self._left:
            if arrived < jobs and (not queue or arrivals[arrived].arrival_s <= queue[0][0]):
                job = arrivals[arrived]
                if job.arrival_s > until_s:
                    break
                arrived += 1
                self._deliver(job.arrival_s, JobSubmitted(job=job))
                continue
            if not queue or queue[0][0] > until_s:
                break
            at_s, _, what, version = heappop(queue)
            if isinstance(what, RunningGang):
                if what.version == version:
                    self._finish(what, at_s)
                    if progress is not None:
                        progress(jobs - self._left)
            elif isinstance(what, Wake):
                if at_s == self._wake_s:
                    self._wake_s = float("inf")
                    self._deliver(at_s, what)
            elif isinstance(what, NodeDown | NodeUp):
                self._change_machine(what, at_s)
            else:
                self._deliver(at_s, what)
        return self.log

    def _push(self, at_s: float, event: Event) -> None:
        heappush(self._queue, (at_s, self._seq, event, 0))
        self._seq += 1

    def _deliver(self, now_s: float, event: Event) -> None:
        """Feed one event to the scheduler and carry out what it asks for."""
        assert now_s >= self.now_s, f"time went back from {self.now_s} to {now_s}"
        self.now_s = now_s
        self.events += 1
        log = self.log
        log.append((now_s, event))
        for command in self.scheduler.handle(event, now_s=now_s):
            log.append((now_s, command))
            if isinstance(command, StartJob):
                self._start(command, now_s)
            elif isinstance(command, PreemptJob):
                self._stop(command.job_id, now_s)
            elif isinstance(command, WakeAt):
                if command.at_s < self._wake_s:
                    self._wake_s = command.at_s
                    self._push(command.at_s, Wake())
            else:
                assert_never(command)

    def _change_machine(self, event: NodeDown | NodeUp, now_s: float) -> None:
        if isinstance(event, NodeDown):
            self._failed.add(event.machine)
        else:
            self._failed.discard(event.machine)
        self._deliver(now_s, event)

    def _start(self, command: StartJob, now_s: float) -> None:
        job_id, placement = command.job_id, command.placement
        served_s = self._served_s.get(job_id)
        start_s = now_s
        if served_s is None:
            served_s = 0.0
        else:
            start_s += self._checkpoint.restore_s
        gang = RunningGang(self._jobs[job_id], placement, served_s, start_s)
        self._running[job_id] = gang
        neighbours = self._links.join(gang)
        if neighbours is None:
            heappush(self._queue, (gang.finish_s(), self._seq, gang, 0))
            self._seq += 1
        else:
            self._settle(neighbours, now_s, new=gang)

    def _finish(self, gang: RunningGang, now_s: float) -> None:
        del self._running[gang.job.id]
        self._left -= 1
        if gang.nics:
            self._settle(self._links.leave(gang), now_s)
        self._deliver(now_s, JobFinished(job_id=gang.job.id, served_s=gang.job.service_s))

    def _stop(self, job_id: str, now_s: float) -> None:
        """Checkpoint a gang and stop it; on a lost machine it falls back to its last checkpoint."""
        gang = self._running.pop(job_id)
        gang.advance(now_s)
        gang.version += 1
        if gang.nics:
            self._settle(self._links.leave(gang), now_s)
        done_s = gang.job.service_s - gang.remaining_s
        saved_at_s = now_s + self._checkpoint.save_s
        if self._failed and any(name in self._failed for name, _ in gang.placement):
            interval_s = self._checkpoint.interval_s
            done_s = gang.served_s + (done_s - gang.served_s) // interval_s * interval_s
            saved_at_s = now_s
        self._served_s[job_id] = done_s
        self._push(saved_at_s, JobPreempted(job_id=job_id, served_s=done_s))

    def _settle(
        self, gangs: dict[RunningGang, None], now_s: float, *, new: RunningGang | None = None
    ) -> None:
        """Find the new pace of these gangs and move their finishes."""
        before = [gang.iteration_s for gang in gangs]
        for gang in gangs:
            gang.advance(now_s)
        self._links.settle(gangs)
        queue = self._queue
        for gang, old_s in zip(gangs, before, strict=True):
            if gang is new or abs(gang.iteration_s - old_s) > PACE_TOLERANCE * old_s:
                gang.version += 1
                heappush(queue, (gang.finish_s(), self._seq, gang, gang.version))
                self._seq += 1
            else:
                gang.iteration_s = old_s
