"""Carries a job scheduler's commands out in simulated time: the driver of `slim jobs simulate`.

Progress is counted in ideal seconds. A gang's finish moves whenever its links get more or less crowded;
the old finish stays on the timeline and is skipped when its time comes.
"""

from collections.abc import Callable, Sequence
from math import inf
from operator import attrgetter
from typing import Final, assert_never

from slimsched.jobs.domain.job import Job
from slimsched.jobs.execution.simulated.failure import Checkpoint, Failure
from slimsched.jobs.execution.simulated.shared_links import RunningGang, SharedLinks, Sharing
from slimsched.jobs.scheduler.messages import (
    Event,
    JobFinished,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    PreemptJob,
    StartJob,
)
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.telemetry.entries import JobEntry
from slimsched.kernel.timeline import Action, Timeline
from slimsched.kernel.wake import Wake, WakeAt

PACE_TOLERANCE: Final = 0.005
"""A gang's finish is moved when its pace changes by more than this share."""


class SimulatedJobs:
    """A cluster in simulated time under one scheduler; `log` is what happened so far."""

    def __init__(
        self,
        *,
        scheduler: JobScheduler,
        sensitivity: Sensitivity,
        jobs: Sequence[Job],
        checkpoint: Checkpoint | None = None,
        failures: Sequence[Failure] = (),
        sharing: Sharing = "fair",
    ) -> None:
        self.scheduler = scheduler
        self.sensitivity = sensitivity
        self.log: list[JobEntry] = []
        self._timeline = Timeline()
        self._on_finish: Action = self._finish  # bound once: it is scheduled most often
        self._links = SharedLinks(sensitivity, sharing)
        self._checkpoint = checkpoint or Checkpoint()
        self._start_s = self._checkpoint.start_s
        self._restore_s = self._checkpoint.restore_s
        self._jobs = {job.id: job for job in jobs}
        self._running: dict[str, RunningGang] = {}
        self._served_s: dict[str, float] = {}
        self._failed: set[str] = set()
        self._wake_s = inf
        self._left = len(self._jobs)
        self._progress: Callable[[int], None] | None = None
        self._arrivals = sorted(jobs, key=attrgetter("arrival_s"))
        self._arrivals_s = [job.arrival_s for job in self._arrivals]
        self._arrived = 0
        for failure in failures:
            self._timeline.at(failure.at_s, self._lose_machine, failure.machine)
            self._timeline.at(failure.at_s + failure.repair_s, self._regain_machine, failure.machine)

    @property
    def events(self) -> int:
        """Events that the scheduler has handled."""
        return len(self.log)

    def run(self, *, until_s: float = inf, progress: Callable[[int], None] | None = None) -> list[JobEntry]:
        """Run until all jobs are done, or until a time; returns the log."""
        self._progress = progress
        timeline, arrivals_s, arrived = self._timeline, self._arrivals_s, self._arrived
        jobs = len(arrivals_s)
        while self._left:
            next_s = timeline.next_s()
            # arrivals stay off the timeline, which keeps it short; at equal times they go first
            if arrived < jobs and arrivals_s[arrived] <= next_s:
                arrival_s = arrivals_s[arrived]
                if arrival_s > until_s:
                    break
                timeline.now_s = arrival_s
                arrived += 1
                self._deliver(JobSubmitted(job=self._arrivals[arrived - 1]))
            elif next_s <= until_s and next_s < inf:
                timeline.advance()
            else:
                break
        self._arrived = arrived
        return self.log

    def _deliver(self, event: Event) -> None:
        """Feed one event to the scheduler, note it, and carry out what the scheduler asks for."""
        now_s = self._timeline.now_s
        commands = self.scheduler.handle(event, now_s=now_s)
        self.log.append((now_s, event, commands))
        for command in commands:
            if isinstance(command, StartJob):
                self._start(command, now_s)
            elif isinstance(command, PreemptJob):
                self._stop(command.job_id, now_s)
            elif isinstance(command, WakeAt):
                if command.at_s < self._wake_s:
                    self._wake_s = command.at_s
                    self._timeline.at(command.at_s, self._wake)
            else:
                assert_never(command)

    def _wake(self, _: None) -> None:
        """Wake the scheduler, unless an earlier wake-up has replaced this one."""
        if self._timeline.now_s == self._wake_s:
            self._wake_s = inf
            self._deliver(Wake())

    def _lose_machine(self, machine: str) -> None:
        self._failed.add(machine)
        self._deliver(NodeDown(machine=machine))

    def _regain_machine(self, machine: str) -> None:
        self._failed.discard(machine)
        self._deliver(NodeUp(machine=machine))

    def _start(self, command: StartJob, now_s: float) -> None:
        job_id, placement = command.job_id, command.placement
        served_s = self._served_s.get(job_id)
        if served_s is None:
            served_s = 0.0
            start_s = now_s + self._start_s
        else:
            start_s = now_s + self._restore_s
        gang = RunningGang(self._jobs[job_id], placement, served_s, start_s)
        self._running[job_id] = gang
        neighbours = self._links.join(gang)
        if neighbours is None:
            self._timeline.at(gang.finish_s(), self._on_finish, (gang, 0))
        else:
            self._settle(neighbours, now_s, new=gang)

    def _finish(self, planned: tuple[RunningGang, int]) -> None:
        """Finish a gang, unless its finish has moved since this one was planned."""
        gang, version = planned
        if gang.version != version:
            return
        job = gang.job
        job_id = job.id
        del self._running[job_id]
        self._left -= 1
        if gang.nics:
            self._settle(self._links.leave(gang), self._timeline.now_s)
        self._deliver(JobFinished(job_id=job_id, served_s=job.service_s))
        if self._progress is not None:
            self._progress(len(self._jobs) - self._left)

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
        self._timeline.at(saved_at_s, self._deliver, JobPreempted(job_id=job_id, served_s=done_s))

    def _settle(
        self, gangs: dict[RunningGang, None], now_s: float, *, new: RunningGang | None = None
    ) -> None:
        """Find the new pace of these gangs and move their finishes."""
        if not gangs:
            return
        before = [gang.iteration_s for gang in gangs]
        for gang in gangs:
            gang.advance(now_s)
        self._links.settle(gangs)
        timeline, on_finish = self._timeline, self._on_finish
        for gang, old_s in zip(gangs, before, strict=True):
            if gang is new or abs(gang.iteration_s - old_s) > PACE_TOLERANCE * old_s:
                gang.version += 1
                timeline.at(gang.finish_s(), on_finish, (gang, gang.version))
            else:
                gang.iteration_s = old_s
