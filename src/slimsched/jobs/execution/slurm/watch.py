"""The controller's eyes: what has happened to our jobs between two looks at Slurm, as events."""

from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

from msgspec import Struct

from slimsched.jobs.domain import Placement
from slimsched.jobs.execution.slurm.client import SlurmClient
from slimsched.jobs.execution.slurm.error import (
    SlurmDeniedError,
    SlurmError,
    SlurmGoneError,
    SlurmUnreachableError,
)
from slimsched.jobs.execution.slurm.job import Status
from slimsched.jobs.execution.slurm.note import Memory
from slimsched.jobs.execution.slurm.observation import Observation, ObservedJob
from slimsched.jobs.execution.slurm.stage import STEPS, Stage, Step
from slimsched.jobs.scheduler.messages import (
    Event,
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    StartFailed,
)
from slimsched.jobs.scheduler.scheduler import JobScheduler


class Patience(Struct, frozen=True, kw_only=True):
    """How long Slurm may take to start a gang, how often it may fail to, and how many notes a round writes.

    `settle_s`: after slurmctld was away a gang that has ended may still pass for running, for its machine
    reports it every 15 s only; stopping it then would make it run twice.
    """

    start_s: float = 30.0
    settle_s: float = 20.0
    starts: int = 3
    notes: int = 50


class Tracked:
    """What we think of one job between two looks."""

    __slots__ = ("failure", "failures", "memory", "placement", "released_unix_s", "restarts", "stage")

    def __init__(self, stage: Stage, observed: ObservedJob) -> None:
        self.stage = stage
        self.memory = observed.memory
        self.placement = observed.placement
        self.restarts = observed.slurm.restarts
        self.released_unix_s = 0.0
        self.failures = 0
        self.failure = ""


class SlurmWatch:
    """Our jobs as we last knew them. `broken` says why the scheduler must be built anew, if it must."""

    def __init__(self, client: SlurmClient, patience: Patience, warn: Callable[[str], None]) -> None:
        self._client = client
        self._patience = patience
        self._warn = warn
        self._warned: set[str] = set()
        self._put_aside: set[str] = set()
        self.tracked: dict[str, Tracked] = {}
        self.broken = "the controller starts"

    def changes(self, seen: Observation, scheduler: JobScheduler) -> list[Event]:
        """What has happened since the last look: first what frees GPUs, then what wants them."""
        if seen.machines != scheduler.topology.machines:
            self.broken = "machines came, went or changed hands"
            return []
        freed: list[Event] = []
        wanted: list[Event] = []
        for job_id in sorted(self.tracked.keys() | seen.jobs.keys(), key=int):
            event = self._change(job_id, seen, scheduler)
            if event is not None:
                (wanted if isinstance(event, JobSubmitted) else freed).append(event)
        return [*freed, *wanted]

    def everything(self, seen: Observation) -> list[Event]:
        """All there is, for a scheduler that knows nothing: first who runs, then who waits."""
        self.broken = ""
        self.tracked.clear()
        running: list[Event] = []
        waiting: list[JobSubmitted] = []
        for job_id in sorted(seen.jobs, key=int):
            if seen.jobs[job_id].slurm.status is not Status.GONE and job_id not in self._put_aside:
                event = self._meet(seen.jobs[job_id], seen)
                if isinstance(event, JobSubmitted):
                    waiting.append(event)
                elif event is not None:
                    running.append(event)
        return [*running, *sorted(waiting, key=lambda event: (event.job.arrival_s, int(event.job.id)))]

    def put_aside(self, job_id: str) -> None:
        """Leave a job alone until it is gone."""
        self._put_aside.add(job_id)
        del self.tracked[job_id]

    def remember(self, job_id: str, tracked: Tracked) -> None:
        """Write what we must not forget into the job, if it is still there."""
        with suppress(SlurmGoneError):
            self._client.remember(job_id, tracked.memory)

    def warn_once(self, text: str) -> None:
        """Say something that will stay true for a while."""
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    def _change(self, job_id: str, seen: Observation, scheduler: JobScheduler) -> Event | None:
        """What one job's change means."""
        tracked, observed = self.tracked.get(job_id), seen.jobs.get(job_id)
        if observed is None or observed.slurm.status is Status.GONE:
            self._put_aside.discard(job_id)
            return JobFinished(job_id=job_id) if self.tracked.pop(job_id, None) else None
        if tracked is None:
            return None if job_id in self._put_aside else self._meet(observed, seen)
        match STEPS[tracked.stage, observed.slurm.status]:
            case Step.NOTHING:
                return None
            case Step.CHECK:
                return self._check(observed, tracked, scheduler)
            case Step.LATE:
                return self._late(observed, tracked, seen)
            case Step.START_FAILED:
                tracked.failure = tracked.failure or f"held again, {observed.slurm.reason}"
                return self._start_failed(job_id, tracked)
            case Step.PREEMPTED:
                return self._preempted(observed, tracked, scheduler.jobs[job_id].service_s(seen.now_s))
            case Step.REBUILD:
                self.broken = f"somebody else released job {job_id}"
                return None
            case step:
                assert_never(step)

    def _meet(self, observed: ObservedJob, seen: Observation) -> Event | None:
        """Take up a job we did not know; one that Slurm might start on its own is held first."""
        job, memory, status = observed.job, observed.memory, observed.slurm.status
        if status is Status.ENDING:
            return None
        if status is Status.RUNNING:
            self.tracked[job.id] = Tracked(Stage.RUNNING, observed)
            return JobFoundRunning(
                job=job, placement=observed.placement, served_s=memory.served_s, since_s=observed.since_s
            )
        if job.gpus > sum(machine.gpus for machine in seen.machines):
            self.warn_once(f"job {job.id} asks for {job.gpus} GPUs, more than there are now; it waits")
            return None
        if status is Status.QUEUED:
            self._hold(job.id)
        self.tracked[job.id] = Tracked(Stage.WAITING, observed)
        return JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s)

    def _check(self, observed: ObservedJob, tracked: Tracked, scheduler: JobScheduler) -> Event | None:
        """See whether a job runs where it was told to; Slurm may have shared its GPUs out otherwise."""
        job_id, placement = observed.job.id, observed.placement
        tracked.stage = Stage.RUNNING
        tracked.failures = 0
        if observed.slurm.restarts != tracked.restarts:
            self.broken = f"Slurm restarted job {job_id}"
        elif set(placement) != set(tracked.placement):
            more = dict(placement)
            for name, gpus in tracked.placement:
                more[name] = more.get(name, 0) - gpus
            free = scheduler.free
            if all(gpus <= free.by_machine[free.index[name]] for name, gpus in more.items()):
                tracked.placement = placement
                return JobFoundRunning(job=observed.job, placement=placement)
            self.broken = f"job {job_id} runs on {_where(placement)}"
        return None

    def _late(self, observed: ObservedJob, tracked: Tracked, seen: Observation) -> Event | None:
        """Take back a gang that Slurm does not start."""
        begun_s = max(tracked.released_unix_s, observed.slurm.eligible_s or 0.0)
        if seen.unix_s - begun_s < self._patience.start_s:
            return None
        self._hold(observed.job.id)
        tracked.failure = f"Slurm says {observed.slurm.reason}"
        return self._start_failed(observed.job.id, tracked)

    def _start_failed(self, job_id: str, tracked: Tracked) -> Event:
        """A gang did not start; after a few times it is put aside so that it blocks nobody."""
        tracked.stage = Stage.WAITING
        tracked.failures += 1
        reason, tracked.failure = tracked.failure, ""
        if tracked.failures < self._patience.starts:
            return StartFailed(job_id=job_id, reason=reason)
        self._warn(f"job {job_id} failed to start {tracked.failures} times ({reason}); it stays held")
        self.put_aside(job_id)
        return JobFinished(job_id=job_id)

    def _preempted(self, observed: ObservedJob, tracked: Tracked, served_s: float) -> Event:
        """A gang waits again: because we said so, or thrown out by Slurm or an operator."""
        job_id = observed.job.id
        if observed.slurm.status is Status.QUEUED:
            self._hold(job_id)
        if tracked.stage is Stage.RUNNING:
            tracked.memory = Memory(
                arrival_s=observed.job.arrival_s, served_s=round(served_s, 3), placement=tracked.placement
            )
            self.remember(job_id, tracked)
        tracked.stage = Stage.WAITING
        return JobPreempted(job_id=job_id, served_s=tracked.memory.served_s)

    def _hold(self, job_id: str) -> None:
        """Keep Slurm from starting a job; if Slurm just started it, the next look will show that."""
        try:
            self._client.hold(job_id)
        except (SlurmUnreachableError, SlurmDeniedError):
            raise
        except SlurmError:
            self.broken = f"job {job_id} could not be held"


def _where(placement: Placement) -> str:
    return ", ".join(f"{name}×{gpus}" for name, gpus in placement)
