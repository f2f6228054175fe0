"""Drives a real Slurm with a pure job scheduler, from outside.

One round: look at Slurm, turn what changed into events, carry out the commands that come back. Nothing is
kept that Slurm does not hold: a controller that starts, or that finds Slurm in a state it did not expect,
lets its scheduler start afresh from that one look.

Each event is handled, then shown to the observer with all its commands, then carried out: the order of the
simulator. All that decides is in the scheduler, so a log of events and times gives the same commands again.
"""

from collections.abc import Callable
from math import inf
from typing import assert_never

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
from slimsched.jobs.execution.slurm.observation import Observation
from slimsched.jobs.execution.slurm.stage import Stage
from slimsched.jobs.execution.slurm.watch import Patience, SlurmWatch, Tracked
from slimsched.jobs.scheduler.messages import LiveEvent, PreemptJob, Rebuilt, RefuseJob, StartJob
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.setting import SchedulerSetting
from slimsched.jobs.telemetry import SCHEDULER_NAME
from slimsched.kernel.observer import Observer
from slimsched.kernel.wake import Wake, WakeAt


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

    def round(self, seen: Observation) -> None:
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

    def _act(self, seen: Observation) -> None:
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

    def _feed(self, event: LiveEvent, seen: Observation, *, at_s: float) -> None:
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

    def _start(self, job_id: str, placement: Placement, seen: Observation) -> None:
        """Bind a gang to its machines and release it."""
        tracked = self._watch.tracked.get(job_id)
        if tracked is None:
            return  # it has gone, and the scheduler is about to hear of it
        observed = seen.jobs[job_id]
        tracked.stage = Stage.STARTING
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

    def _preempt(self, job_id: str, seen: Observation) -> None:
        """Stop a gang, now or once it is sure that it still runs."""
        tracked = self._watch.tracked.get(job_id)
        if tracked is None or tracked.stage not in (Stage.STARTING, Stage.RUNNING):
            return  # it has stopped, and the scheduler is about to hear of it
        if seen.unix_s < self._settled_unix_s:
            self._stop_later.append(job_id)
        else:
            assert self.scheduler is not None
            self._stop(self.scheduler, job_id, tracked, seen)
        tracked.stage = Stage.STOPPING

    def _stop_those_left(self, scheduler: JobScheduler, seen: Observation) -> None:
        """Stop the gangs whose stop was put off, unless they have ended by themselves."""
        jobs, self._stop_later = self._stop_later, []
        for job_id in jobs:
            tracked = self._watch.tracked.get(job_id)
            if tracked is not None and tracked.stage is Stage.STOPPING:
                self._stop(scheduler, job_id, tracked, seen)

    def _stop(self, scheduler: JobScheduler, job_id: str, tracked: Tracked, seen: Observation) -> None:
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
            if tracked.stage is not Stage.WAITING or notes == self._patience.notes:
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
