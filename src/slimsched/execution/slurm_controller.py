"""Drives a real Slurm with a pure job scheduler, from outside.

One round: look at Slurm, turn what changed into events, carry out the commands that come back. Nothing is
kept that Slurm does not hold: a controller that starts, or that finds Slurm in a state it did not expect,
builds its scheduler anew from that one look.
"""

from collections.abc import Callable, Mapping
from typing import assert_never

from msgspec import Struct

from slimsched.domain.fabric import Fabric
from slimsched.domain.placement import Placement
from slimsched.domain.topology import Topology
from slimsched.domain.training_model import TrainingModel
from slimsched.errors import SlimError
from slimsched.execution.slurm_client import SlurmClient
from slimsched.execution.slurm_error import SlurmDeniedError, SlurmError, SlurmUnreachableError
from slimsched.execution.slurm_job import Status
from slimsched.execution.slurm_note import Memory
from slimsched.execution.slurm_observation import Observation, ObservedJob
from slimsched.execution.slurm_split import split
from slimsched.execution.slurm_stage import STEPS, Stage, Step
from slimsched.jobs.commands import Command, PreemptJob, StartJob, WakeAt
from slimsched.jobs.events import (
    Event,
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    StartFailed,
    Wake,
)
from slimsched.jobs.policy import Policy
from slimsched.jobs.scheduler import JobScheduler
from slimsched.jobs.sensitivity import Sensitivity

FOREVER = float("inf")


class Patience(Struct, frozen=True, kw_only=True):
    """How long Slurm may take to start a gang, how often it may fail to, and notes written a round."""

    start_s: float = 30.0
    starts: int = 3
    notes: int = 50


class Rebuilt(Struct, frozen=True, kw_only=True, tag=True):
    """The scheduler was built anew, from one look at Slurm."""

    reason: str


Entry = Event | Command | Rebuilt


class Tracked:
    """What the controller thinks of one job between two looks."""

    __slots__ = ("failure", "failures", "memory", "placement", "released_unix_s", "restarts", "stage")

    def __init__(self, stage: Stage, observed: ObservedJob) -> None:
        self.stage = stage
        self.memory = observed.memory
        self.placement = observed.placement
        self.restarts = observed.slurm.restarts
        self.released_unix_s = 0.0
        self.failures = 0
        self.failure = ""


class SlurmController:
    """A scheduler's eyes and hands on Slurm; call `round` again and again."""

    def __init__(
        self,
        *,
        client: SlurmClient,
        policy: Policy,
        fabric: Fabric,
        models: Mapping[str, TrainingModel],
        quotas: Mapping[str, int] | None = None,
        patience: Patience | None = None,
        record: Callable[[float, Entry], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._policy = policy
        self._fabric = fabric
        self._models = models
        self._quotas = quotas
        self._patience = patience or Patience()
        self._record = record or (lambda now_s, entry: None)
        self._warn = warn or (lambda text: None)
        self._warned: set[str] = set()
        self._put_aside: set[str] = set()
        self._tracked: dict[str, Tracked] = {}
        self._broken = "the controller starts"
        self.scheduler: JobScheduler | None = None
        self.wake_s = FOREVER
        self._last_s = 0.0

    @property
    def jobs(self) -> int:
        """Jobs of ours that wait or run."""
        return len(self._tracked)

    def round(self, seen: Observation) -> None:
        """Take one look at Slurm into account and act on it."""
        for job_id, why in seen.refused.items():
            self._warn_once(f"job {job_id} cannot be placed: {why}")
        try:
            events = self._changes(seen)
            if self._broken:
                events = self._rebuild(seen)
            elif seen.now_s >= self.wake_s:  # a timer ran out before anything else was seen
                due_s, self.wake_s = max(self.wake_s, self._last_s), FOREVER
                self._feed(Wake(), seen, at_s=due_s)
            for event in events:
                self._feed(event, seen, at_s=seen.now_s)
            self._last_s = seen.now_s
            self._note_declines()
        except SlurmUnreachableError:
            self._broken = "Slurm went away while it was told what to do"
            raise

    # -- from looks to events

    def _changes(self, seen: Observation) -> list[Event]:
        """What has happened since the last look: first what frees GPUs, then what wants them."""
        if self.scheduler is None or self._broken:
            return []
        if seen.machines != self.scheduler.topology.machines:
            self._broken = "machines came, went or changed hands"
            return []
        freed: list[Event] = []
        wanted: list[Event] = []
        for job_id in sorted(self._tracked.keys() | seen.jobs.keys(), key=_number):
            event = self._change(job_id, seen)
            if event is not None:
                (wanted if isinstance(event, JobSubmitted) else freed).append(event)
        return [*freed, *wanted]

    def _rebuild(self, seen: Observation) -> list[Event]:
        """Start afresh from what Slurm says: first who runs, then who waits."""
        if not seen.machines:
            self._warn_once("no machine with GPUs is usable; waiting for one")
            return []
        self._record(seen.now_s, Rebuilt(reason=self._broken))
        self._broken = ""
        self._tracked.clear()
        self.wake_s = FOREVER
        topology = Topology(seen.machines, name="slurm")
        self.scheduler = JobScheduler(
            topology=topology,
            policy=self._policy,
            sensitivity=Sensitivity(topology=topology, fabric=self._fabric, models=self._models),
            quotas=self._quotas,
            split=split,
        )
        events = [self._change(job_id, seen) for job_id in sorted(seen.jobs, key=_number)]
        running = [event for event in events if isinstance(event, JobFoundRunning)]
        waiting = [event for event in events if isinstance(event, JobSubmitted)]
        return [*running, *sorted(waiting, key=lambda event: (event.job.arrival_s, _number(event.job.id)))]

    def _change(self, job_id: str, seen: Observation) -> Event | None:
        """What one job's change means."""
        tracked, observed = self._tracked.get(job_id), seen.jobs.get(job_id)
        if observed is None or observed.slurm.status is Status.GONE:
            self._put_aside.discard(job_id)
            return JobFinished(job_id=job_id) if self._tracked.pop(job_id, None) else None
        if tracked is None:
            return None if job_id in self._put_aside else self._meet(observed, seen)
        match STEPS[tracked.stage, observed.slurm.status]:
            case Step.NOTHING:
                return None
            case Step.CHECK:
                return self._check(observed, tracked)
            case Step.LATE:
                begun_s = max(tracked.released_unix_s, observed.slurm.eligible_s or 0.0)
                if seen.unix_s - begun_s < self._patience.start_s:
                    return None
                self._hold(job_id)
                tracked.failure = f"Slurm says {observed.slurm.reason}"
                return self._start_failed(job_id, tracked)
            case Step.START_FAILED:
                tracked.failure = tracked.failure or f"held again, {observed.slurm.reason}"
                return self._start_failed(job_id, tracked)
            case Step.PREEMPTED:
                return self._preempted(observed, tracked, seen.now_s)
            case Step.REBUILD:
                self._broken = f"somebody else released job {job_id}"
                return None
            case step:
                assert_never(step)

    def _check(self, observed: ObservedJob, tracked: Tracked) -> Event | None:
        """See whether a job runs where it was told to; Slurm may have shared its GPUs out otherwise."""
        assert self.scheduler is not None
        job_id, placement = observed.job.id, observed.placement
        tracked.stage = Stage.RUNNING
        tracked.failures = 0
        if observed.slurm.restarts != tracked.restarts:
            self._broken = f"Slurm restarted job {job_id}"
        elif set(placement) != set(tracked.placement):
            more = dict(placement)
            for name, gpus in tracked.placement:
                more[name] = more.get(name, 0) - gpus
            free = self.scheduler.free
            if all(gpus <= free.by_machine[free.index[name]] for name, gpus in more.items()):
                tracked.placement = placement
                return JobFoundRunning(job=observed.job, placement=placement)
            self._broken = f"job {job_id} runs on {_where(placement)}"
        return None

    def _meet(self, observed: ObservedJob, seen: Observation) -> Event | None:
        """Take up a job we did not know; one that Slurm might start on its own is held first."""
        job, memory, status = observed.job, observed.memory, observed.slurm.status
        if status is Status.ENDING:
            return None
        if status is Status.RUNNING:
            self._tracked[job.id] = Tracked(Stage.RUNNING, observed)
            return JobFoundRunning(
                job=job,
                placement=observed.placement,
                served_s=memory.served_s,
                since_s=observed.since_s,
            )
        if job.gpus > sum(machine.gpus for machine in seen.machines):
            self._warn_once(f"job {job.id} asks for {job.gpus} GPUs, more than there are now; it waits")
            return None
        if status is Status.QUEUED:
            self._hold(job.id)
        self._tracked[job.id] = Tracked(Stage.WAITING, observed)
        return JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s)

    def _preempted(self, observed: ObservedJob, tracked: Tracked, now_s: float) -> Event:
        """A gang waits again: because we said so, or thrown out by Slurm or an operator."""
        assert self.scheduler is not None
        job_id = observed.job.id
        if observed.slurm.status is Status.QUEUED:
            self._hold(job_id)
        if tracked.stage is Stage.RUNNING:
            served_s = round(self.scheduler.jobs[job_id].service_s(now_s), 3)
            tracked.memory = Memory(
                arrival_s=observed.job.arrival_s, served_s=served_s, placement=tracked.placement
            )
            self._client.remember(job_id, tracked.memory)
        tracked.stage = Stage.WAITING
        return JobPreempted(job_id=job_id, served_s=tracked.memory.served_s)

    def _start_failed(self, job_id: str, tracked: Tracked) -> Event:
        """A gang did not start; after a few times it is put aside so that it blocks nobody."""
        tracked.stage = Stage.WAITING
        tracked.failures += 1
        reason, tracked.failure = tracked.failure, ""
        if tracked.failures < self._patience.starts:
            return StartFailed(job_id=job_id, reason=reason)
        self._warn(f"job {job_id} failed to start {tracked.failures} times ({reason}); it stays held")
        self._put_aside.add(job_id)
        del self._tracked[job_id]
        return JobFinished(job_id=job_id)

    # -- from commands to Slurm

    def _feed(self, event: Event, seen: Observation, *, at_s: float) -> None:
        assert self.scheduler is not None
        self._record(at_s, event)
        try:
            commands = self.scheduler.handle(event, now_s=at_s)
        except SlimError as error:  # a demand or quota that can never be met concerns one job only
            if not isinstance(event, JobSubmitted):
                raise
            self._warn_once(str(error))
            self._put_aside.add(event.job.id)
            del self._tracked[event.job.id]
            return
        for command in commands:
            self._record(at_s, command)
            self._carry_out(command, seen)

    def _carry_out(self, command: Command, seen: Observation) -> None:
        match command:
            case StartJob(job_id=job_id, placement=placement):
                self._start(job_id, placement, seen)
            case PreemptJob(job_id=job_id):
                self._preempt(job_id, seen)
            case WakeAt(at_s=at_s):
                self.wake_s = min(self.wake_s, at_s)
            case _:
                assert_never(command)

    def _start(self, job_id: str, placement: Placement, seen: Observation) -> None:
        tracked = self._tracked[job_id]
        tracked.stage = Stage.STARTING
        tracked.placement = placement
        tracked.released_unix_s = seen.unix_s
        tracked.restarts = seen.jobs[job_id].slurm.restarts
        tracked.memory = Memory(
            arrival_s=seen.jobs[job_id].job.arrival_s,
            served_s=tracked.memory.served_s,
            placement=placement,
        )
        try:
            self._client.place(job_id, placement, tracked.memory)
            self._client.release(job_id)
        except (SlurmUnreachableError, SlurmDeniedError):
            raise
        except SlurmError as error:
            tracked.failure = str(error)  # the job is still held: the next look says so

    def _preempt(self, job_id: str, seen: Observation) -> None:
        """Stop a gang; its attained service is written down first, for it must outlive us."""
        assert self.scheduler is not None
        tracked = self._tracked[job_id]
        tracked.stage = Stage.STOPPING
        tracked.memory = Memory(
            arrival_s=seen.jobs[job_id].job.arrival_s,
            served_s=round(self.scheduler.jobs[job_id].service_s(seen.now_s), 3),
            placement=tracked.placement,
        )
        try:
            self._client.remember(job_id, tracked.memory)
            self._client.requeue_held(job_id)
        except (SlurmUnreachableError, SlurmDeniedError):
            raise
        except SlurmError as error:  # it may just have ended; otherwise the rebuilt scheduler asks again
            self._warn(str(error))
            self._broken = f"job {job_id} could not be stopped"

    def _hold(self, job_id: str) -> None:
        """Keep Slurm from starting a job; if it just did, the next look tells."""
        try:
            self._client.hold(job_id)
        except (SlurmUnreachableError, SlurmDeniedError):
            raise
        except SlurmError:
            self._broken = f"job {job_id} could not be held"

    def _note_declines(self) -> None:
        """Write down since when jobs decline offers: a delay timer must outlive us."""
        if self.scheduler is None:
            return
        notes = 0
        for job_id, tracked in self._tracked.items():
            if tracked.stage is not Stage.WAITING or notes == self._patience.notes:
                continue
            state = self.scheduler.jobs[job_id]
            if state.clock_s is not None and state.clock_s != tracked.memory.declined_since_s:
                notes += 1
                tracked.memory = Memory(
                    arrival_s=state.job.arrival_s,
                    served_s=tracked.memory.served_s,
                    declined_since_s=state.clock_s,
                    placement=tracked.memory.placement,
                )
                self._client.remember(job_id, tracked.memory)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


def _number(job_id: str) -> int:
    return int(job_id)


def _where(placement: Placement) -> str:
    return ", ".join(f"{name}×{gpus}" for name, gpus in placement)
