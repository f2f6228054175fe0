"""Drives a real Slurm with the job scheduler: looks, tells the scheduler, and does what it asks for.

The controller keeps a notebook: for each job of ours the *stage* in which we think it is, what it must
remember, and where it was told to run. In each round it takes one look at Slurm. Where we think a job is and
what Slurm says of it give the step to take (`STEPS`). Most steps are events, first those that free GPUs, then
those that want them. Each event is handled by the scheduler, shown to the observer with all its commands, and
then the commands are carried out: the order of the simulator. A command moves a job to its next stage
(`NEXT_STAGES`), and the looks that follow show whether Slurm did what it was told.

Nothing is kept that Slurm does not hold. What must outlive the controller is written into the job in Slurm.
When it starts, or finds Slurm in a state that it did not expect, the notebook is *broken*: the scheduler then
starts afresh from that one look. All that decides is in the scheduler, so a log of events and times gives the
same commands again. A dry run prints the commands instead.
"""

import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from math import inf
from threading import Event as StopSignal
from typing import assert_never

import msgspec
from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.jobs.domain import Job, Machine, Placement, gpus_in, where
from slimsched.jobs.scheduler import messages
from slimsched.jobs.scheduler.gpus import FreeGpus
from slimsched.jobs.scheduler.messages import Event, JobFoundRunning, JobSubmitted, LiveCommand, LiveEvent
from slimsched.jobs.scheduler.scheduler import Explanation, JobScheduler
from slimsched.jobs.scheduler.waiting import CLAIMING, RUNNING, STOPPING, WAITING, JobState
from slimsched.jobs.setting import LiveScheduler, SchedulerSetting
from slimsched.jobs.slurm.wire import (
    JobRequest,
    Memory,
    SlurmClient,
    SlurmDeniedError,
    SlurmError,
    SlurmGoneError,
    SlurmJob,
    SlurmUnreachableError,
    Status,
    memory_in,
    request_in,
)
from slimsched.jobs.telemetry import SCHEDULER_NAME

# -- Where we think a job is, and what it means if Slurm says something of it.


class JobStage(Enum):
    """Where we think a job of ours is."""

    WAITING = "waiting"
    STARTING = "starting"  # placed and released; Slurm has not started it yet
    RUNNING = "running"
    STOPPING = "stopping"  # told to stop; Slurm has not requeued it yet


NEXT_STAGES = {
    JobStage.WAITING: (JobStage.STARTING,),
    JobStage.STARTING: (JobStage.RUNNING, JobStage.STOPPING, JobStage.WAITING),
    JobStage.RUNNING: (JobStage.STOPPING, JobStage.WAITING),
    JobStage.STOPPING: (JobStage.WAITING,),
}
"""Which stage may follow which; a job that is gone for good is finished from wherever it was."""


class Step(Enum):
    """What to tell the scheduler, or to do about it."""

    NOTHING = "as expected"
    CHECK = "it runs: see whether it runs where we wanted"
    LATE = "released but not running: be patient for a while, then take it back"
    START_FAILED = "released but held again"
    PREEMPTED = "it has stopped and waits again"
    REBUILD = "somebody else released it: start afresh from what Slurm says"


_SAYS = (Status.HELD, Status.QUEUED, Status.RUNNING, Status.ENDING)
_STEPS = {
    JobStage.WAITING: (Step.NOTHING, Step.REBUILD, Step.REBUILD, Step.REBUILD),
    JobStage.STARTING: (Step.START_FAILED, Step.LATE, Step.CHECK, Step.NOTHING),
    JobStage.RUNNING: (Step.PREEMPTED, Step.PREEMPTED, Step.CHECK, Step.NOTHING),
    JobStage.STOPPING: (Step.PREEMPTED, Step.PREEMPTED, Step.NOTHING, Step.NOTHING),
}
STEPS = {(stage, says): step for stage, row in _STEPS.items() for says, step in zip(_SAYS, row, strict=True)}
"""By where we think a job is and what Slurm says of it."""


# -- One look at Slurm: which jobs are ours, where they run, and which GPUs we may give away.


class ObservedJob(Struct, frozen=True, kw_only=True):
    """A job of ours."""

    slurm: SlurmJob  # as Slurm has it
    job: Job  # as the scheduler is told of it
    memory: Memory  # what a controller wrote into it
    placement: Placement = ()  # where it runs, or is about to end
    since_s: float | None = None  # when it began to run, by the scheduler's clock

    @property
    def waits(self) -> bool:
        """Whether it has no GPUs and wants some."""
        return self.slurm.status in (Status.HELD, Status.QUEUED)


class SlurmSnapshot(Struct, frozen=True, kw_only=True):
    """What Slurm said at one time."""

    unix_s: float  # when, on the wall
    now_s: float  # when, by the scheduler's clock
    jobs: Mapping[str, ObservedJob]  # ours, by id
    machines: tuple[Machine, ...]  # those we may use, each with the GPUs that are not in strangers' hands
    refused: Mapping[str, str]  # jobs that want to be ours, and why they cannot be


def observe(
    client: SlurmClient, *, racks: Mapping[str, str], partition: str | None, unix_s: float, speed: float
) -> SlurmSnapshot:
    """Ask Slurm for its jobs and machines.

    The scheduler's time is Unix seconds times `speed`, which is above 1 for demos with short jobs.
    On a machine that is draining or down we count just what our jobs still hold there.
    """
    ours: dict[str, ObservedJob] = {}
    refused: dict[str, str] = {}
    held, strange = Counter[str](), Counter[str]()
    for slurm in client.jobs():
        placement = client.placement(slurm) if slurm.status in (Status.RUNNING, Status.ENDING) else ()
        request = request_in(slurm.comment) if partition in (None, slurm.partition) else None
        why_not = _why_not(slurm)
        if request is not None and not why_not:
            ours[slurm.id] = _observed(slurm, request, placement, speed)
        elif request is not None and slurm.status is not Status.GONE:
            refused[slurm.id] = why_not
        (held if slurm.id in ours else strange).update(dict(placement))
    machines: list[Machine] = []
    for node in client.nodes():
        if partition is None or partition in node.partitions:
            left = node.gpus - strange[node.name] if node.usable else held[node.name]
            if left > 0:
                machines.append(Machine(name=node.name, rack=racks.get(node.name, "rack"), gpus=left))
    return SlurmSnapshot(
        unix_s=unix_s, now_s=unix_s * speed, jobs=ours, machines=tuple(machines), refused=refused
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


def _observed(slurm: SlurmJob, request: JobRequest, placement: Placement, speed: float) -> ObservedJob:
    memory = memory_in(slurm.admin_comment)
    job = Job(
        id=slurm.id,
        arrival_s=slurm.submit_s * speed if memory.arrival_s is None else memory.arrival_s,
        gpus=gpus_in(memory.placement) or slurm.gpus,
        service_s=request.service_s,
        model=request.model,
        tenant=request.tenant or slurm.user,
        limit_s=None if slurm.limit_s is None else slurm.limit_s * speed,
    )
    since_s = None if slurm.start_s is None else slurm.start_s * speed
    return ObservedJob(slurm=slurm, job=job, memory=memory, placement=placement, since_s=since_s)


# -- Whether a Slurm can be driven from outside at all, and what will hurt.

OLDEST = (22, 5)


class Preflight(Struct, frozen=True, kw_only=True):
    """What the controller must know of a Slurm before it starts."""

    cluster: str  # Slurm's name for it
    racks: dict[str, str]  # the leaf switch of each machine; empty if Slurm knows of none
    warnings: tuple[str, ...]  # what will be slow or unseen, each with its remedy


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
    racks, warnings = client.racks(), []
    if not racks:
        warnings.append("topology.conf names no racks: all machines count as one rack")
    expire = re.search(r"cred_expire=(\d+)", configuration.get("AuthInfo", ""))
    expire_s = int(expire[1]) if expire else 120
    if expire_s > 30:
        warnings.append(
            f"a preempted gang cannot start again for {expire_s} s; AuthInfo=cred_expire=5 shortens that"
        )
    cluster = configuration.get("ClusterName", "slurm")
    return Preflight(cluster=cluster, racks=racks, warnings=tuple(warnings))


# -- The controller: one notebook, and the rounds that write it.


SETTLE_S = 20.0
"""Seconds that slurmctld may take for gangs that ended while it was away."""
STARTS = 3
"""Starts that may fail before a gang is put aside."""
NOTES = 50
"""Notes about declined offers, in one round."""


@dataclass(slots=True)
class Tracked:
    """What the controller thinks of one job between two looks."""

    job_id: str
    stage: JobStage  # where we think it is
    memory: Memory  # what is written into the job, or will be when it is next told something
    placement: Placement  # where it was told to run, or was found running
    restarts: int  # how often Slurm had restarted it then
    released_unix_s: float = 0.0  # when it was let go for Slurm to start it
    failures: int = 0  # starts that failed in a row
    failure: str = ""  # why the present start will turn out to have failed, if we know

    def enter(self, stage: JobStage) -> None:
        """Go on to the next stage."""
        if stage is not self.stage and stage not in NEXT_STAGES[self.stage]:
            raise AssertionError(f"{self}: it cannot be {stage.value} next")
        self.stage = stage


class SlurmController:
    """Drives one Slurm; call `round` again and again."""

    def __init__(
        self,
        *,
        client: SlurmClient,
        setting: SchedulerSetting,
        patience_s: float = 30.0,
        observer: Observer | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.wake_s = inf  # when the scheduler wants to be woken
        self._client = client
        self._live = LiveScheduler(setting)
        self._patience_s = patience_s  # that a released gang may take to start
        self._observer = observer  # is shown every event with its commands, such as the writer of a log
        self._warn = warn or (lambda text: None)  # tells the operator
        self._tracked: dict[str, Tracked] = {}  # our jobs that wait or run, by id
        self._broken = "the controller starts"  # why the scheduler must start afresh, if it must
        self._put_aside: set[str] = set()  # jobs that are left alone until they are gone
        self._stop_later: list[str] = []  # jobs to be stopped when it is sure that they still run
        self._settled_unix_s = 0.0  # when machines have reported who ended while slurmctld was away
        self._last_s = 0.0  # the time of the last round
        self._warned: set[str] = set()  # what was said once and stays true for a while

    @property
    def scheduler(self) -> JobScheduler | None:
        """The scheduler as it stands; None before the first round."""
        return self._live.current

    @property
    def jobs(self) -> int:
        """Jobs of ours that wait or run."""
        return len(self._tracked)

    def slurm_was_away(self, *, until_unix_s: float) -> None:
        """Stop nobody until machines have had time to report who has ended meanwhile.

        Each reports every 15 s; a gang that is stopped after it has ended would run twice.
        """
        self._settled_unix_s = until_unix_s + SETTLE_S

    def round(self, seen: SlurmSnapshot) -> list[LiveCommand]:
        """Take one look at Slurm into account and act on it; return what the scheduler asked for."""
        for job_id, why in seen.refused.items():
            self._warn_once(f"job {job_id} cannot be placed: {why}")
        if not seen.machines:
            self._warn_once("no machine with GPUs is usable; waiting for one")
            return []
        try:
            return self._act(seen)
        except SlurmUnreachableError:
            self._broken = "Slurm went away while it was told what to do"
            raise

    def _act(self, seen: SlurmSnapshot) -> list[LiveCommand]:
        scheduler, asked = self.scheduler, list[LiveCommand]()
        events = [] if scheduler is None or self._broken else self._changes(seen, scheduler)
        if scheduler is None or self._broken:
            self._stop_later.clear()
            self.wake_s = inf
            rebuilt = messages.Rebuilt(machines=seen.machines, reason=self._broken)
            asked += self._feed(rebuilt, seen, at_s=seen.now_s)
            events = self._everything(seen)
        elif seen.now_s >= self.wake_s:  # a timer ran out before anything else was seen
            due_s, self.wake_s = max(self.wake_s, self._last_s), inf
            asked += self._feed(Wake(), seen, at_s=due_s)
        for event in events:
            asked += self._feed(event, seen, at_s=seen.now_s)
        if self._stop_later and seen.unix_s >= self._settled_unix_s:
            self._stop_those_left(seen)
        self._note_declines()
        self._last_s = seen.now_s
        return asked

    def _feed(self, event: LiveEvent, seen: SlurmSnapshot, *, at_s: float) -> list[LiveCommand]:
        """Tell the scheduler, do what it asks for, and return that."""
        commands = self._live.handle(event, now_s=at_s)
        if self._observer is not None:
            self._observer.observe(at_s, SCHEDULER_NAME, event, commands)
        for command in commands:
            match command:
                case messages.StartJob(job_id=job_id, placement=placement):
                    self._start(job_id, placement, seen)
                case messages.PreemptJob(job_id=job_id):
                    self._preempt(job_id, seen)
                case WakeAt(at_s=wake_s):
                    self.wake_s = min(self.wake_s, wake_s)
                case messages.RefuseJob(job_id=job_id, reason=reason):
                    self._warn_once(reason)
                    self._leave_alone(job_id)
                case _:
                    assert_never(command)
        return commands

    def _state(self, job_id: str) -> JobState:
        """What the scheduler knows about a job that we track."""
        assert self.scheduler is not None
        return self.scheduler.jobs[job_id]

    # -- what has happened: from a look to events

    def _changes(self, seen: SlurmSnapshot, scheduler: JobScheduler) -> list[Event]:
        """What has happened since the last look: first what frees GPUs, then what wants them."""
        if seen.machines != scheduler.topology.machines:
            self._broken = "machines came, went or changed hands"
            return []
        freed: list[Event] = []
        wanted: list[Event] = []
        for job_id in sorted(self._tracked.keys() | seen.jobs.keys(), key=int):
            event = self._change(job_id, seen, scheduler)
            if event is not None:
                (wanted if isinstance(event, JobSubmitted) else freed).append(event)
        return [*freed, *wanted]

    def _everything(self, seen: SlurmSnapshot) -> list[Event]:
        """All there is, for a scheduler that knows nothing: first who runs, then who waits."""
        self._broken = ""
        self._tracked.clear()
        events = [
            self._meet(seen.jobs[job_id], seen)
            for job_id in sorted(seen.jobs, key=int)
            if seen.jobs[job_id].slurm.status is not Status.GONE and job_id not in self._put_aside
        ]
        running = [event for event in events if isinstance(event, JobFoundRunning)]
        waiting = [event for event in events if isinstance(event, JobSubmitted)]
        return [*running, *sorted(waiting, key=lambda event: (event.job.arrival_s, int(event.job.id)))]

    def _change(self, job_id: str, seen: SlurmSnapshot, scheduler: JobScheduler) -> Event | None:
        """What one job's change means."""
        tracked, observed = self._tracked.get(job_id), seen.jobs.get(job_id)
        if observed is None or observed.slurm.status is Status.GONE:
            self._put_aside.discard(job_id)
            return messages.JobFinished(job_id=job_id) if self._tracked.pop(job_id, None) else None
        if tracked is None:
            return None if job_id in self._put_aside else self._meet(observed, seen)
        match STEPS[tracked.stage, observed.slurm.status]:
            case Step.NOTHING:
                return None
            case Step.CHECK:
                return self._check(observed, tracked, scheduler.free)
            case Step.LATE:
                return self._late(observed, tracked, seen)
            case Step.START_FAILED:
                tracked.failure = tracked.failure or f"held again, {observed.slurm.reason}"
                return self._start_failed(tracked)
            case Step.PREEMPTED:
                return self._preempted(observed, tracked, seen)
            case Step.REBUILD:
                self._broken = f"somebody else released job {job_id}"
                return None
            case step:
                assert_never(step)

    def _meet(self, observed: ObservedJob, seen: SlurmSnapshot) -> Event | None:
        """Take up a job we did not know; one that Slurm might start on its own is held first."""
        job, memory, status = observed.job, observed.memory, observed.slurm.status
        if status is Status.ENDING:
            return None
        runs = status is Status.RUNNING
        if not runs and job.gpus > sum(machine.gpus for machine in seen.machines):
            self._warn_once(f"job {job.id} asks for {job.gpus} GPUs, more than there are now; it waits")
            return None
        if status is Status.QUEUED:
            self._hold(job.id)
        stage = JobStage.RUNNING if runs else JobStage.WAITING
        self._tracked[job.id] = Tracked(job.id, stage, memory, observed.placement, observed.slurm.restarts)
        if runs:
            return JobFoundRunning(
                job=job, placement=observed.placement, served_s=memory.served_s, since_s=observed.since_s
            )
        return JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s)

    def _check(self, observed: ObservedJob, tracked: Tracked, free: FreeGpus) -> Event | None:
        """See whether a job runs where it was told to; Slurm may have shared its GPUs out otherwise."""
        placement = observed.placement
        tracked.enter(JobStage.RUNNING)
        tracked.failures = 0
        if observed.slurm.restarts != tracked.restarts:
            self._broken = f"Slurm restarted job {tracked.job_id}"
        elif set(placement) != set(tracked.placement):
            more = Counter(dict(placement))
            more.subtract(dict(tracked.placement))
            if all(gpus <= free.by_machine[free.index[name]] for name, gpus in more.items()):
                tracked.placement = placement
                return JobFoundRunning(job=observed.job, placement=placement)
            self._broken = f"job {tracked.job_id} runs on {where(placement)}"
        return None

    def _late(self, observed: ObservedJob, tracked: Tracked, seen: SlurmSnapshot) -> Event | None:
        """Take back a gang that Slurm does not start."""
        begun_s = max(tracked.released_unix_s, observed.slurm.eligible_s or 0.0)
        if seen.unix_s - begun_s < self._patience_s:
            return None
        self._hold(tracked.job_id)
        tracked.failure = f"Slurm says {observed.slurm.reason}"
        return self._start_failed(tracked)

    def _start_failed(self, tracked: Tracked) -> Event:
        """A gang did not start; after a few times it is put aside so that it blocks nobody."""
        job_id = tracked.job_id
        tracked.enter(JobStage.WAITING)
        tracked.failures += 1
        reason, tracked.failure = tracked.failure, ""
        if tracked.failures < STARTS:
            return messages.StartFailed(job_id=job_id, reason=reason)
        self._warn(f"job {job_id} failed to start {tracked.failures} times ({reason}); it stays held")
        self._leave_alone(job_id)
        return messages.JobFinished(job_id=job_id)

    def _preempted(self, observed: ObservedJob, tracked: Tracked, seen: SlurmSnapshot) -> Event:
        """A gang waits again: because we said so, or thrown out by Slurm or an operator."""
        if observed.slurm.status is Status.QUEUED:
            self._hold(tracked.job_id)
        if tracked.stage is JobStage.RUNNING:
            self._note_service(observed, tracked, seen)
            self._remember(tracked)
        tracked.enter(JobStage.WAITING)
        return messages.JobPreempted(job_id=tracked.job_id, served_s=tracked.memory.served_s)

    # -- what is to be done: from commands to Slurm

    def _start(self, job_id: str, placement: Placement, seen: SlurmSnapshot) -> None:
        """Bind a gang to its machines and release it."""
        tracked = self._tracked.get(job_id)
        if tracked is None:
            return  # it has gone, and the scheduler is about to hear of it
        observed = seen.jobs[job_id]
        tracked.enter(JobStage.STARTING)
        tracked.placement = placement
        tracked.released_unix_s = seen.unix_s
        tracked.restarts = observed.slurm.restarts
        tracked.memory = memory = Memory(
            arrival_s=observed.job.arrival_s, served_s=tracked.memory.served_s, placement=placement
        )

        def place_and_release() -> None:
            self._client.place(job_id, placement, memory)
            self._client.release(job_id)

        error = _carried_out(place_and_release)
        if error is not None:
            tracked.failure = str(error)  # the job is still held: the next look says so

    def _preempt(self, job_id: str, seen: SlurmSnapshot) -> None:
        """Stop a gang, now or once it is sure that it still runs."""
        tracked = self._tracked.get(job_id)
        if tracked is None or tracked.stage not in (JobStage.STARTING, JobStage.RUNNING):
            return  # it has stopped, and the scheduler is about to hear of it
        if seen.unix_s < self._settled_unix_s:
            self._stop_later.append(job_id)
        else:
            self._stop(tracked, seen)
        tracked.enter(JobStage.STOPPING)

    def _stop_those_left(self, seen: SlurmSnapshot) -> None:
        """Stop the gangs whose stop was put off, unless they have ended by themselves."""
        jobs, self._stop_later = self._stop_later, []
        for job_id in jobs:
            tracked = self._tracked.get(job_id)
            if tracked is not None and tracked.stage is JobStage.STOPPING:
                self._stop(tracked, seen)

    def _stop(self, tracked: Tracked, seen: SlurmSnapshot) -> None:
        """Stop a gang; its attained service is written down first, for it must outlive us."""
        job_id, observed = tracked.job_id, seen.jobs[tracked.job_id]
        self._note_service(observed, tracked, seen)

        def remember_and_stop() -> None:
            self._client.remember(job_id, tracked.memory)
            if observed.slurm.status is Status.QUEUED:
                self._client.hold(job_id)
            else:
                self._client.requeue_held(job_id)

        error = _carried_out(remember_and_stop)
        if error is not None and not isinstance(error, SlurmGoneError):  # one that is gone will be seen so
            self._warn(str(error))
            self._broken = f"job {job_id} could not be stopped"

    def _hold(self, job_id: str) -> None:
        """Keep Slurm from starting a job; if Slurm just started it, the next look will show that."""
        if _carried_out(lambda: self._client.hold(job_id)) is not None:
            self._broken = f"job {job_id} could not be held"

    def _leave_alone(self, job_id: str) -> None:
        """Put a job aside until it is gone."""
        self._put_aside.add(job_id)
        del self._tracked[job_id]

    # -- what must outlive us

    def _note_service(self, observed: ObservedJob, tracked: Tracked, seen: SlurmSnapshot) -> None:
        """Note how much service a running job has had by now."""
        tracked.memory = Memory(
            arrival_s=observed.job.arrival_s,
            served_s=round(self._state(tracked.job_id).service_s(seen.now_s), 3),
            placement=tracked.placement,
        )

    def _note_declines(self) -> None:
        """Write down since when jobs decline offers: a delay timer must outlive us."""
        notes = 0
        for job_id, tracked in self._tracked.items():
            if tracked.stage is not JobStage.WAITING or notes == NOTES:
                continue
            state = self._state(job_id)
            if state.clock_s is not None and state.clock_s != tracked.memory.declined_since_s:
                notes += 1
                tracked.memory = msgspec.structs.replace(
                    tracked.memory, arrival_s=state.job.arrival_s, declined_since_s=state.clock_s
                )
                self._remember(tracked)

    def _remember(self, tracked: Tracked) -> None:
        """Write what we must not forget into the job, if it is still there."""
        with suppress(SlurmGoneError):
            self._client.remember(tracked.job_id, tracked.memory)

    def _warn_once(self, text: str) -> None:
        """Say something that will stay true for a while."""
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    def validate(self) -> None:
        """Raise an AssertionError unless notebook and scheduler agree: for tests, after each round."""
        if self.scheduler is None or self._broken:
            return  # both start afresh at the next look
        self.scheduler.validate()
        assert self.scheduler.jobs.keys() == self._tracked.keys(), "scheduler and notebook know other jobs"
        assert not self._put_aside & self._tracked.keys(), "a job that is left alone is tracked"
        assert self.wake_s <= self.scheduler.timers.next_s(), "nobody will wake the scheduler in time"
        for job_id, tracked in self._tracked.items():
            state = self._state(job_id)
            assert state.phase in PHASES_OF[tracked.stage], f"{tracked}, but {state.story()}"
            if state.phase >= RUNNING:
                assert set(tracked.placement) == set(state.placement), f"{tracked}, but {state.story()}"


PHASES_OF = {
    JobStage.WAITING: (WAITING, CLAIMING),
    JobStage.STARTING: (RUNNING,),
    JobStage.RUNNING: (RUNNING,),
    JobStage.STOPPING: (STOPPING,),
}
"""Phases of the scheduler that a job may have at each stage, between two rounds."""


def _carried_out(request: Callable[[], None]) -> SlurmError | None:
    """Ask Slurm for something; return what went wrong with this one job, if that is all that went wrong."""
    try:
        request()
    except (SlurmUnreachableError, SlurmDeniedError):
        raise
    except SlurmError as error:
        return error
    return None


# -- The controller's rounds in real time: look, act, wait; and keep asking while Slurm is away.


def run(
    controller: SlurmController,
    *,
    look: Callable[[], SlurmSnapshot],
    speed: float,
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
        stop.wait(max(0.0, min(poll_s, controller.wake_s / speed - time.time())))


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

Make = Callable[[SlurmClient], SlurmController]
"""Makes a controller for a client."""


class DryRunClient(SlurmClient):
    """Collects the commands it would have run in `calls`; remembers nothing in Slurm."""

    def __init__(self, client: SlurmClient) -> None:
        super().__init__(conf=client.conf, timeout_s=client.timeout_s)
        self.calls: list[str] = []

    def remember(self, job_id: str, memory: Memory) -> None:
        """Write nothing."""

    def _tell(self, *arguments: str, memory: Memory | None = None) -> None:
        self.calls.append(" ".join(["scontrol", *arguments]))


class DryRun(Struct, frozen=True, kw_only=True):
    """What the controller would do now, and the calls it would make."""

    commands: tuple[messages.StartJob | messages.PreemptJob, ...]  # what the scheduler asks for
    calls: tuple[str, ...]  # how Slurm would be told


class Outlook(Struct, frozen=True, kw_only=True):
    """What it takes to start one gang now: whom to stop, where it then runs, or why it waits."""

    job: Job
    victims: tuple[str, ...]  # jobs that would be stopped for it
    placement: Placement  # where it would then run; empty if it would wait
    explanation: Explanation | None  # why it would wait


def plan(client: SlurmClient, make: Make, seen: SlurmSnapshot) -> DryRun:
    """One round of a fresh controller that only says what it would do."""
    dry = DryRunClient(client)
    asked = make(dry).round(seen)
    commands = tuple(one for one in asked if isinstance(one, messages.StartJob | messages.PreemptJob))
    return DryRun(commands=commands, calls=tuple(dry.calls))


def explanation(client: SlurmClient, make: Make, seen: SlurmSnapshot, job_id: str) -> Explanation:
    """Why a job waits, or where it runs, in the eyes of a fresh controller."""
    controller = make(DryRunClient(client))
    controller.round(seen)
    assert controller.scheduler is not None
    return controller.scheduler.explain(job_id, now_s=seen.now_s)


def outlook(client: SlurmClient, make: Make, seen: SlurmSnapshot, job: Job) -> Outlook:
    """What a gang would get if it came last now: a job that waits already, or one that is only thought of."""
    others = {job_id: observed for job_id, observed in seen.jobs.items() if job_id != job.id}
    controller = make(DryRunClient(client))
    controller.round(msgspec.structs.replace(seen, jobs=others))
    scheduler, now_s = controller.scheduler, seen.now_s
    assert scheduler is not None
    memory = seen.jobs[job.id].memory if job.id in seen.jobs else Memory()
    commands = scheduler.handle(
        JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s), now_s=now_s
    )
    victims = tuple(command.job_id for command in commands if isinstance(command, messages.PreemptJob))
    for victim in victims:
        served_s = scheduler.jobs[victim].service_s(now_s)
        commands += scheduler.handle(messages.JobPreempted(job_id=victim, served_s=served_s), now_s=now_s)
    starts = [c for c in commands if isinstance(c, messages.StartJob) and c.job_id == job.id]
    return Outlook(
        job=job,
        victims=victims,
        placement=starts[0].placement if starts else (),
        explanation=None if starts else scheduler.explain(job.id, now_s=now_s),
    )
