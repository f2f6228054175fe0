"""Drives a real Slurm with a pure job scheduler, from outside.

One round: look at Slurm, turn what changed into events, carry out the commands that come back. Nothing is
kept that Slurm does not hold: a controller that starts, or that finds Slurm in a state it did not expect,
lets its scheduler start afresh from that one look.

What a change means is a table (`STEPS`): where we think a job is, and what Slurm says of it, give the step to
take. Each event is handled, then shown to the observer with all its commands, then carried out: the order of
the simulator. All that decides is in the scheduler, so a log of events and times gives the same commands
again. A dry run prints the commands instead.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from math import inf
from threading import Event as StopSignal
from typing import assert_never

import msgspec
from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.jobs.domain import Job, Machine, Placement, gpus_in
from slimsched.jobs.scheduler.messages import (
    Event,
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    LiveEvent,
    PreemptJob,
    Rebuilt,
    RefuseJob,
    StartFailed,
    StartJob,
)
from slimsched.jobs.scheduler.scheduler import Explanation, JobScheduler
from slimsched.jobs.setting import SchedulerSetting
from slimsched.jobs.slurm.wire import JobRequest as Request
from slimsched.jobs.slurm.wire import (
    Memory,
    SlurmClient,
    SlurmDeniedError,
    SlurmError,
    SlurmGoneError,
    SlurmJob,
    SlurmUnreachableError,
    Status,
    memory_in,
    place_arguments,
    request_in,
)
from slimsched.jobs.telemetry import SCHEDULER_NAME

# -- What a change seen in Slurm means, as a table: (where we think a job is, what Slurm says) → step.


class JobStage(Enum):
    """Where we think a job of ours is."""

    WAITING = "waiting"
    STARTING = "starting"  # placed and released; Slurm has not started it yet
    RUNNING = "running"
    STOPPING = "stopping"  # told to stop; Slurm has not requeued it yet


class Step(Enum):
    """What to tell the scheduler, or to do about it."""

    NOTHING = "as expected"
    CHECK = "it runs: see whether it runs where we wanted"
    LATE = "released but not running: be patient for a while, then take it back"
    START_FAILED = "released but held again"
    PREEMPTED = "it has stopped and waits again"
    REBUILD = "somebody else released it: start afresh from what Slurm says"


STEPS: dict[tuple[JobStage, Status], Step] = {
    (JobStage.WAITING, Status.HELD): Step.NOTHING,
    (JobStage.WAITING, Status.QUEUED): Step.REBUILD,
    (JobStage.WAITING, Status.RUNNING): Step.REBUILD,
    (JobStage.WAITING, Status.ENDING): Step.REBUILD,
    (JobStage.STARTING, Status.HELD): Step.START_FAILED,
    (JobStage.STARTING, Status.QUEUED): Step.LATE,
    (JobStage.STARTING, Status.RUNNING): Step.CHECK,
    (JobStage.STARTING, Status.ENDING): Step.NOTHING,
    (JobStage.RUNNING, Status.HELD): Step.PREEMPTED,
    (JobStage.RUNNING, Status.QUEUED): Step.PREEMPTED,
    (JobStage.RUNNING, Status.RUNNING): Step.CHECK,
    (JobStage.RUNNING, Status.ENDING): Step.NOTHING,
    (JobStage.STOPPING, Status.HELD): Step.PREEMPTED,
    (JobStage.STOPPING, Status.QUEUED): Step.PREEMPTED,
    (JobStage.STOPPING, Status.RUNNING): Step.NOTHING,
    (JobStage.STOPPING, Status.ENDING): Step.NOTHING,
}
"""A job that is gone for good has no entry: it is finished from wherever it was."""


# -- One look at Slurm: which jobs are ours, where they run, and which GPUs we may give away.


class Clock(Struct, frozen=True, kw_only=True):
    """The scheduler's time: Unix seconds, `speed` times as fast (above 1 for demos with short jobs)."""

    speed: float = 1.0

    def at(self, unix_s: float) -> float:
        """The scheduler's time at a Unix time."""
        return unix_s * self.speed

    def unix_s(self, at_s: float) -> float:
        """The Unix time of a scheduler's time."""
        return at_s / self.speed


class ObservedJob(Struct, frozen=True, kw_only=True):
    """A job of ours: as Slurm has it, as the scheduler is told of it, and where it runs since when."""

    slurm: SlurmJob
    job: Job
    memory: Memory
    placement: Placement = ()
    since_s: float | None = None

    @property
    def waits(self) -> bool:
        """Whether it has no GPUs and wants some."""
        return self.slurm.status in (Status.HELD, Status.QUEUED)


class SlurmSnapshot(Struct, frozen=True, kw_only=True):
    """What Slurm said at one time, `unix_s` on the wall and `now_s` for the scheduler.

    `machines` are those we may use now, each with the GPUs that are not in strangers' hands; `refused`
    says of jobs that want to be ours why they cannot be.
    """

    unix_s: float
    now_s: float
    jobs: Mapping[str, ObservedJob]
    machines: tuple[Machine, ...]
    refused: Mapping[str, str]


def observe(
    client: SlurmClient, *, racks: Mapping[str, str], partition: str | None, unix_s: float, clock: Clock
) -> SlurmSnapshot:
    """Ask Slurm for its jobs and machines.

    On a machine that is draining or down we count just what our jobs still hold there.
    """
    ours: dict[str, ObservedJob] = {}
    refused: dict[str, str] = {}
    held: dict[str, int] = {}
    strange: dict[str, int] = {}
    for slurm in client.jobs():
        placement = client.placement(slurm) if slurm.status in (Status.RUNNING, Status.ENDING) else ()
        request = request_in(slurm.comment) if partition in (None, slurm.partition) else None
        why_not = _why_not(slurm)
        if request is not None and not why_not:
            ours[slurm.id] = _observed(slurm, request, placement, clock)
        elif request is not None and slurm.status is not Status.GONE:
            refused[slurm.id] = why_not
        count = held if slurm.id in ours else strange
        for name, gpus in placement:
            count[name] = count.get(name, 0) + gpus
    machines: list[Machine] = []
    for node in client.nodes():
        if partition is None or partition in node.partitions:
            left = node.gpus - strange.get(node.name, 0) if node.usable else held.get(node.name, 0)
            if left > 0:
                machines.append(Machine(name=node.name, rack=racks.get(node.name, "rack"), gpus=left))
    return SlurmSnapshot(
        unix_s=unix_s, now_s=clock.at(unix_s), jobs=ours, machines=tuple(machines), refused=refused
    )


def _why_not(slurm: SlurmJob) -> str:
    """Why a job cannot be placed by us; empty if it can."""
    if slurm.compound:
        return "it is part of a job array or a heterogeneous job; submit each gang as a job of its own"
    if slurm.per_task:
        return "it asks for GPUs by the task; submit it with --gpus=N so that it can be placed freely"
    if not slurm.gpus:
        return "it asks for no GPUs; submit it with --gpus=N"
    if not slurm.requeue:
        return "it may not be requeued; submit it with --requeue"
    return ""


def _observed(slurm: SlurmJob, request: Request, placement: Placement, clock: Clock) -> ObservedJob:
    memory = memory_in(slurm.admin_comment)
    job = Job(
        id=slurm.id,
        arrival_s=clock.at(slurm.submit_s) if memory.arrival_s is None else memory.arrival_s,
        gpus=gpus_in(memory.placement) or slurm.gpus,
        service_s=request.service_s,
        model=request.model,
        tenant=request.tenant or slurm.user,
        limit_s=None if slurm.limit_s is None else clock.at(slurm.limit_s),
    )
    since_s = None if slurm.start_s is None else clock.at(slurm.start_s)
    return ObservedJob(slurm=slurm, job=job, memory=memory, placement=placement, since_s=since_s)


# -- The controller's eyes: what has happened to our jobs between two looks at Slurm, as events.


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

    def __init__(self, stage: JobStage, observed: ObservedJob) -> None:
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

    def changes(self, seen: SlurmSnapshot, scheduler: JobScheduler) -> list[Event]:
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

    def everything(self, seen: SlurmSnapshot) -> list[Event]:
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

    def _change(self, job_id: str, seen: SlurmSnapshot, scheduler: JobScheduler) -> Event | None:
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

    def _meet(self, observed: ObservedJob, seen: SlurmSnapshot) -> Event | None:
        """Take up a job we did not know; one that Slurm might start on its own is held first."""
        job, memory, status = observed.job, observed.memory, observed.slurm.status
        if status is Status.ENDING:
            return None
        if status is Status.RUNNING:
            self.tracked[job.id] = Tracked(JobStage.RUNNING, observed)
            return JobFoundRunning(
                job=job, placement=observed.placement, served_s=memory.served_s, since_s=observed.since_s
            )
        if job.gpus > sum(machine.gpus for machine in seen.machines):
            self.warn_once(f"job {job.id} asks for {job.gpus} GPUs, more than there are now; it waits")
            return None
        if status is Status.QUEUED:
            self._hold(job.id)
        self.tracked[job.id] = Tracked(JobStage.WAITING, observed)
        return JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s)

    def _check(self, observed: ObservedJob, tracked: Tracked, scheduler: JobScheduler) -> Event | None:
        """See whether a job runs where it was told to; Slurm may have shared its GPUs out otherwise."""
        job_id, placement = observed.job.id, observed.placement
        tracked.stage = JobStage.RUNNING
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

    def _late(self, observed: ObservedJob, tracked: Tracked, seen: SlurmSnapshot) -> Event | None:
        """Take back a gang that Slurm does not start."""
        begun_s = max(tracked.released_unix_s, observed.slurm.eligible_s or 0.0)
        if seen.unix_s - begun_s < self._patience.start_s:
            return None
        self._hold(observed.job.id)
        tracked.failure = f"Slurm says {observed.slurm.reason}"
        return self._start_failed(observed.job.id, tracked)

    def _start_failed(self, job_id: str, tracked: Tracked) -> Event:
        """A gang did not start; after a few times it is put aside so that it blocks nobody."""
        tracked.stage = JobStage.WAITING
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
        if tracked.stage is JobStage.RUNNING:
            tracked.memory = Memory(
                arrival_s=observed.job.arrival_s, served_s=round(served_s, 3), placement=tracked.placement
            )
            self.remember(job_id, tracked)
        tracked.stage = JobStage.WAITING
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


# -- Whether a Slurm can be driven from outside at all, and what will hurt.

OLDEST = (22, 5)


class Preflight(Struct, frozen=True, kw_only=True):
    """What the controller must know of a Slurm before it starts."""

    cluster: str
    racks: dict[str, str]
    warnings: tuple[str, ...]


def check(client: SlurmClient, *, partition: str | None = None) -> Preflight:
    """Refuse a Slurm that cannot do what we need, and warn of settings that make it slow or blind."""
    version = client.version()
    if version < OLDEST:
        raise SlurmError(f"Slurm {version[0]}.{version[1]:02} is too old; 22.05 or newer is needed")
    configuration = client.configuration()
    select = configuration.get("SelectType", "")
    if select != "select/cons_tres":
        raise SlurmError(f"SelectType is {select}, which cannot place GPUs; set SelectType=select/cons_tres")
    nodes = client.nodes()
    if partition is not None and not any(partition in node.partitions for node in nodes):
        known = sorted({name for node in nodes for name in node.partitions})
        raise SlurmError(f"no partition '{partition}' in Slurm; known: {', '.join(known)}")
    if not any(node.gpus for node in nodes if partition is None or partition in node.partitions):
        raise SlurmError("no machine has GPUs; set GresTypes=gpu, Gres=gpu:N on the nodes and gres.conf")
    racks = client.racks()
    return Preflight(
        cluster=configuration.get("ClusterName", "slurm"),
        racks=racks,
        warnings=tuple(_warnings(configuration, racks)),
    )


def _warnings(configuration: dict[str, str], racks: dict[str, str]) -> list[str]:
    warnings = []
    if not racks:
        warnings.append("topology.conf names no racks: all machines count as one rack")
    expire = re.search(r"cred_expire=(\d+)", configuration.get("AuthInfo", ""))
    expire_s = int(expire[1]) if expire else 120
    if expire_s > 30:
        warnings.append(
            f"a preempted gang cannot start again for {expire_s} s; AuthInfo=cred_expire=5 shortens that"
        )
    return warnings


class SlurmController:
    """A scheduler's eyes and hands on Slurm; call `round` again and again."""

    def __init__(
        self,
        *,
        client: SlurmClient,
        setting: SchedulerSetting,
        patience: Patience | None = None,
        observer: Observer | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._live = setting.live_scheduler()
        self._patience = patience or Patience()
        self._observer = observer
        self._warn = warn or (lambda text: None)
        self._watch = SlurmWatch(client, self._patience, self._warn)
        self._settled_unix_s = 0.0
        self._stop_later: list[str] = []
        self._last_s = 0.0
        self.wake_s = inf

    @property
    def scheduler(self) -> JobScheduler | None:
        """The scheduler as it stands; None before the first round."""
        return self._live.current

    @property
    def jobs(self) -> int:
        """Jobs of ours that wait or run."""
        return len(self._watch.tracked)

    def slurm_was_away(self, *, until_unix_s: float) -> None:
        """Stop nobody until machines have had time to report who has ended meanwhile."""
        self._settled_unix_s = until_unix_s + self._patience.settle_s

    def round(self, seen: SlurmSnapshot) -> None:
        """Take one look at Slurm into account and act on it."""
        watch = self._watch
        for job_id, why in seen.refused.items():
            watch.warn_once(f"job {job_id} cannot be placed: {why}")
        if not seen.machines:
            watch.warn_once("no machine with GPUs is usable; waiting for one")
            return
        try:
            self._act(seen)
        except SlurmUnreachableError:
            watch.broken = "Slurm went away while it was told what to do"
            raise

    def _act(self, seen: SlurmSnapshot) -> None:
        watch, scheduler = self._watch, self.scheduler
        events = [] if scheduler is None or watch.broken else watch.changes(seen, scheduler)
        if scheduler is None or watch.broken:
            self._stop_later.clear()
            self.wake_s = inf
            self._feed(Rebuilt(machines=seen.machines, reason=watch.broken), seen, at_s=seen.now_s)
            events = watch.everything(seen)
        elif seen.now_s >= self.wake_s:  # a timer ran out before anything else was seen
            due_s, self.wake_s = max(self.wake_s, self._last_s), inf
            self._feed(Wake(), seen, at_s=due_s)
        for event in events:
            self._feed(event, seen, at_s=seen.now_s)
        scheduler = self.scheduler
        assert scheduler is not None
        if self._stop_later and seen.unix_s >= self._settled_unix_s:
            self._stop_those_left(scheduler, seen)
        self._note_declines(scheduler)
        self._last_s = seen.now_s

    def _feed(self, event: LiveEvent, seen: SlurmSnapshot, *, at_s: float) -> None:
        """Tell the scheduler, note what it asks for, and do it."""
        commands = self._live.handle(event, now_s=at_s)
        if self._observer is not None:
            self._observer.observe(at_s, SCHEDULER_NAME, event, commands)
        for command in commands:
            match command:
                case StartJob(job_id=job_id, placement=placement):
                    self._start(job_id, placement, seen)
                case PreemptJob(job_id=job_id):
                    self._preempt(job_id, seen)
                case WakeAt(at_s=wake_s):
                    self.wake_s = min(self.wake_s, wake_s)
                case RefuseJob(job_id=job_id, reason=reason):
                    self._watch.warn_once(reason)
                    self._watch.put_aside(job_id)
                case _:
                    assert_never(command)

    def _start(self, job_id: str, placement: Placement, seen: SlurmSnapshot) -> None:
        """Bind a gang to its machines and release it."""
        tracked = self._watch.tracked.get(job_id)
        if tracked is None:
            return  # it has gone, and the scheduler is about to hear of it
        observed = seen.jobs[job_id]
        tracked.stage = JobStage.STARTING
        tracked.placement = placement
        tracked.released_unix_s = seen.unix_s
        tracked.restarts = observed.slurm.restarts
        tracked.memory = Memory(
            arrival_s=observed.job.arrival_s, served_s=tracked.memory.served_s, placement=placement
        )
        try:
            self._client.place(job_id, placement, tracked.memory)
            self._client.release(job_id)
        except (SlurmUnreachableError, SlurmDeniedError):
            raise
        except SlurmError as error:
            tracked.failure = str(error)  # the job is still held: the next look says so

    def _preempt(self, job_id: str, seen: SlurmSnapshot) -> None:
        """Stop a gang, now or once it is sure that it still runs."""
        tracked = self._watch.tracked.get(job_id)
        if tracked is None or tracked.stage not in (JobStage.STARTING, JobStage.RUNNING):
            return  # it has stopped, and the scheduler is about to hear of it
        if seen.unix_s < self._settled_unix_s:
            self._stop_later.append(job_id)
        else:
            assert self.scheduler is not None
            self._stop(self.scheduler, job_id, tracked, seen)
        tracked.stage = JobStage.STOPPING

    def _stop_those_left(self, scheduler: JobScheduler, seen: SlurmSnapshot) -> None:
        """Stop the gangs whose stop was put off, unless they have ended by themselves."""
        jobs, self._stop_later = self._stop_later, []
        for job_id in jobs:
            tracked = self._watch.tracked.get(job_id)
            if tracked is not None and tracked.stage is JobStage.STOPPING:
                self._stop(scheduler, job_id, tracked, seen)

    def _stop(self, scheduler: JobScheduler, job_id: str, tracked: Tracked, seen: SlurmSnapshot) -> None:
        """Stop a gang; its attained service is written down first, for it must outlive us."""
        observed = seen.jobs[job_id]
        tracked.memory = Memory(
            arrival_s=observed.job.arrival_s,
            served_s=round(scheduler.jobs[job_id].service_s(seen.now_s), 3),
            placement=tracked.placement,
        )
        try:
            self._client.remember(job_id, tracked.memory)
            if observed.slurm.status is Status.QUEUED:
                self._client.hold(job_id)
            else:
                self._client.requeue_held(job_id)
        except (SlurmUnreachableError, SlurmDeniedError):
            raise
        except SlurmGoneError:
            pass  # it has ended by itself: the next look says so
        except SlurmError as error:
            self._warn(str(error))
            self._watch.broken = f"job {job_id} could not be stopped"

    def _note_declines(self, scheduler: JobScheduler) -> None:
        """Write down since when jobs decline offers: a delay timer must outlive us."""
        notes = 0
        for job_id, tracked in self._watch.tracked.items():
            if tracked.stage is not JobStage.WAITING or notes == self._patience.notes:
                continue
            state = scheduler.jobs[job_id]
            if state.clock_s is not None and state.clock_s != tracked.memory.declined_since_s:
                notes += 1
                tracked.memory = Memory(
                    arrival_s=state.job.arrival_s,
                    served_s=tracked.memory.served_s,
                    declined_since_s=state.clock_s,
                    placement=tracked.memory.placement,
                )
                self._watch.remember(job_id, tracked)


# -- The controller's rounds in real time: look, act, wait; and keep asking while Slurm is away.


def run(
    controller: SlurmController,
    *,
    look: Callable[[], SlurmSnapshot],
    clock: Clock,
    poll_s: float,
    stop: StopSignal,
    until_idle: bool,
    warn: Callable[[str], None],
    after_round: Callable[[], None],
) -> None:
    """Drive Slurm until told to stop, or until no job of ours is left."""
    away = False
    while not stop.is_set():
        try:
            seen = look()
            if away:
                warn("Slurm is back.")
                away = False
                controller.slurm_was_away(until_unix_s=seen.unix_s)
            controller.round(seen)
            after_round()
        except SlurmUnreachableError as error:
            if not away:
                warn(f"{error} Asking again every {poll_s:g} s.")
            away = True
            stop.wait(poll_s)
            continue
        if until_idle and controller.scheduler is not None and not controller.jobs:
            return
        stop.wait(max(0.0, min(poll_s, clock.unix_s(controller.wake_s) - time.time())))


@contextmanager
def sole_controller(cluster: str, partition: str | None) -> Iterator[None]:
    """Refuse to run while another controller on this machine drives the same cluster and partition.

    The lock is a name in Linux' abstract socket space: it goes with the process, however that ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0slim-controller-{cluster}-{partition or 'all'}")
        except OSError:
            raise SlurmError(
                f"another controller drives cluster '{cluster}' from this machine; stop it first"
            ) from None
        yield


# -- What would happen on Slurm, without letting it happen: the dry run and the victim preview.

Make = Callable[[SlurmClient, Observer | None], SlurmController]
"""Makes a controller for a client, and for an observer if there is one."""


class DryRunClient(SlurmClient):
    """Collects the commands it would have run in `calls`; remembers nothing in Slurm."""

    def __init__(self, client: SlurmClient) -> None:
        super().__init__(conf=client.conf, timeout_s=client.timeout_s)
        self.calls: list[str] = []

    def place(self, job_id: str, placement: Placement, memory: Memory) -> None:
        """Say where a held job would be bound to."""
        self.calls.append(" ".join(["scontrol", *place_arguments(job_id, placement)]))

    def remember(self, job_id: str, memory: Memory) -> None:
        """Write nothing."""

    def release(self, job_id: str) -> None:
        """Say that a held job would be released."""
        self.calls.append(f"scontrol release {job_id}")

    def hold(self, job_id: str) -> None:
        """Say that a waiting job would be held."""
        self.calls.append(f"scontrol hold {job_id}")

    def requeue_held(self, job_id: str) -> None:
        """Say that a running job would be stopped."""
        self.calls.append(f"scontrol requeuehold Incomplete {job_id}")


class _Commands:
    """An observer that keeps the commands."""

    def __init__(self) -> None:
        self.seen: list[Struct] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Keep the commands of one entry."""
        self.seen += commands


class DryRun(Struct, frozen=True, kw_only=True):
    """What the controller would do now, and the calls it would make."""

    commands: tuple[StartJob | PreemptJob, ...]
    calls: tuple[str, ...]


class Outlook(Struct, frozen=True, kw_only=True):
    """What it takes to start one gang now: whom to stop, where it then runs, or why it waits."""

    job: Job
    victims: tuple[str, ...]
    placement: Placement
    explanation: Explanation | None


def plan(client: SlurmClient, make: Make, seen: SlurmSnapshot) -> DryRun:
    """One round of a fresh controller that only says what it would do."""
    dry = DryRunClient(client)
    asked = _Commands()
    make(dry, asked).round(seen)
    commands = tuple(command for command in asked.seen if isinstance(command, StartJob | PreemptJob))
    return DryRun(commands=commands, calls=tuple(dry.calls))


def explanation(client: SlurmClient, make: Make, seen: SlurmSnapshot, job_id: str) -> Explanation:
    """Why a job waits, or where it runs, in the eyes of a fresh controller."""
    controller = make(DryRunClient(client), None)
    controller.round(seen)
    assert controller.scheduler is not None
    return controller.scheduler.explain(job_id, now_s=seen.now_s)


def outlook(client: SlurmClient, make: Make, seen: SlurmSnapshot, job: Job) -> Outlook:
    """What a gang would get if it came last now: a job that waits already, or one that is only thought of."""
    others = {job_id: observed for job_id, observed in seen.jobs.items() if job_id != job.id}
    controller = make(DryRunClient(client), None)
    controller.round(msgspec.structs.replace(seen, jobs=others))
    scheduler, now_s = controller.scheduler, seen.now_s
    assert scheduler is not None
    memory = seen.jobs[job.id].memory if job.id in seen.jobs else Memory()
    commands = scheduler.handle(
        JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s), now_s=now_s
    )
    victims = tuple(command.job_id for command in commands if isinstance(command, PreemptJob))
    for victim in victims:
        served_s = scheduler.jobs[victim].service_s(now_s)
        commands += scheduler.handle(JobPreempted(job_id=victim, served_s=served_s), now_s=now_s)
    starts = [c for c in commands if isinstance(c, StartJob) and c.job_id == job.id]
    return Outlook(
        job=job,
        victims=victims,
        placement=starts[0].placement if starts else (),
        explanation=None if starts else scheduler.explain(job.id, now_s=now_s),
    )
