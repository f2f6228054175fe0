"""The job scheduler: a pure state machine, driven alike by the simulator and by a live controller.

One event goes in, commands come out. Between two events nothing waits that could start: so an arrival is
only tried itself, a timer only its own job, and only freed GPUs are offered to everybody, group by group.
After a restart, feed JobFoundRunning for every running job, then JobSubmitted for every waiting one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.domain.training_model import Scaling
from slimsched.jobs.scheduling.commands import Command
from slimsched.jobs.scheduling.delay import DelayTimers
from slimsched.jobs.scheduling.demand import check_demand
from slimsched.jobs.scheduling.events import (
    Event,
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    StartFailed,
)
from slimsched.jobs.scheduling.explanation import Explanation, explain
from slimsched.jobs.scheduling.job_state import CLAIMING, RUNNING, WAITING, JobState
from slimsched.jobs.scheduling.occupancy import Occupancy, Split
from slimsched.jobs.scheduling.policy import FOREVER, Policy
from slimsched.jobs.scheduling.preemption import make_room, migrate
from slimsched.jobs.scheduling.reservation import backfill, plan_ahead, reserve
from slimsched.jobs.scheduling.resizing import resize
from slimsched.jobs.scheduling.sensitivity import Sensitivity, Traits
from slimsched.kernel.wake import Wake, WakeAt

MACHINE: Final = Tier.MACHINE
RACK: Final = Tier.RACK
NETWORK: Final = Tier.NETWORK

PREEMPTION_TRIES: Final = 8
"""Waiting jobs for which victims are sought at each quantum."""
RENEW_AFTER_S: Final = 60.0
"""A timer that ran out is renewed if the policy would now wait longer by at least this."""


class JobScheduler(Occupancy):
    """Decides which gang runs where and when, by a policy."""

    def __init__(
        self,
        *,
        topology: Topology,
        policy: Policy,
        sensitivity: Sensitivity,
        quotas: Mapping[str, int] | None = None,
        split: Split | None = None,
    ) -> None:
        """`split` says how an engine shares a gang out over the machines chosen for it."""
        super().__init__(topology=topology, policy=policy, quotas=quotas, split=split)
        policy.begin(topology)
        self.timers = DelayTimers()
        self._sensitivity = sensitivity
        self._kinds: dict[tuple[str, int], tuple[Tier, Traits]] = {}
        self._seq = 0
        self._armed_s = FOREVER
        self._quantum_s = FOREVER
        self._reordered_s = 0.0
        self._obeys = policy.obeys
        self._blocking = policy.blocking
        self._calm = policy.calm
        self._resizes = policy.resizes
        self._restless = self.running if policy.resizes else self.spread if policy.migrates else {}
        """Running jobs that may be worth another look at each quantum."""
        self.next_gpus: dict[str, int] = {}
        """What a job goes on with that is being stopped."""
        self._periodic = (
            policy.preempts
            or policy.migrates
            or policy.resizes
            or policy.reorders
            or policy.backfills
            or policy.reserve_after_s < FOREVER
        )
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            JobSubmitted: self._submitted,
            JobFoundRunning: self._found_running,
            JobFinished: self._finished,
            JobPreempted: self._preempted,
            StartFailed: self._start_failed,
            NodeDown: self._node_down,
            NodeUp: self._node_up,
            Wake: self._woken,
        }

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Take one event into account and return what must now be done."""
        commands: list[Command] = []
        self._commands = commands
        self._handlers[type(event)](event, now_s)
        self._arm(now_s)
        return commands

    def explain(self, job_id: str, *, now_s: float) -> Explanation:
        """Say why a job waits, or where it runs."""
        return explain(self, job_id, now_s)

    # -- events

    def _submitted(self, event: JobSubmitted, now_s: float) -> None:
        job = self._admit(event.job, now_s)
        job.served_s = event.served_s
        self._enqueue(job, now_s, declined_since_s=event.declined_since_s)
        if job.phase == WAITING and self._preempts:
            make_room(self, job, now_s)

    def _found_running(self, event: JobFoundRunning, now_s: float) -> None:
        known = self.running.get(event.job.id)
        if known is not None:
            self.correct(known, event.placement, now_s)
            self._offer(now_s)
            return
        job = self._admit(event.job, now_s)
        job.served_s = event.served_s
        spots = self.free.spots(event.placement)
        self.free.take_at(spots)
        self._occupy(job, event.placement, spots, now_s if event.since_s is None else event.since_s)
        self.policy.launched(job, job.tier, 0.0, now_s)

    def _finished(self, event: JobFinished, now_s: float) -> None:
        job = self.jobs.pop(event.job_id, None)
        if job is None:
            return
        if self._resizes:
            self.next_gpus.pop(job.id, None)
        phase = job.phase
        if phase >= RUNNING:
            served_s = event.served_s
            service_s = job.service_s(now_s) if served_s is None else served_s
            self._vacate(job, now_s, served_s)
            self.policy.finished(job, service_s)
        else:
            if phase == WAITING:
                self.waiting.leave(job)
            self.policy.dropped(job)
        if self.claims.open:
            self.claims.dissolve(job, self.down)
        self._offer(now_s)

    def _preempted(self, event: JobPreempted, now_s: float) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or job.phase < RUNNING:
            return
        served_s = event.served_s
        self._vacate(job, now_s, served_s)
        job.served_s = served_s
        job.preemptions += 1
        if self._resizes:
            self.fit(job, self.next_gpus.pop(job.id, job.gpus))
        claim = self.claims.open.get(job.id)
        if claim is None:
            self._enqueue(job, now_s, place=False)
        else:
            job.phase = CLAIMING
            self._launch_clear(claim, now_s)
        self._offer(now_s)

    def _start_failed(self, event: StartFailed, now_s: float) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None and job.phase >= RUNNING:
            self._vacate(job, now_s, None)
            self._enqueue(job, now_s, place=False)
            self._offer(now_s)

    def _node_down(self, event: NodeDown, now_s: float) -> None:
        name = event.machine
        if name in self.down:
            return
        for job in self._lose(name):
            self._enqueue(job, now_s, place=False)
        self._offer(now_s)

    def _node_up(self, event: NodeUp, now_s: float) -> None:
        name = event.machine
        if name not in self.down:
            return
        self._regain(name, now_s)
        self._offer(now_s)

    def _woken(self, event: Wake, now_s: float) -> None:
        self._armed_s = FOREVER
        widened = [job for job in self.timers.due(now_s) if self._widen(job, now_s)]
        for job in sorted(widened, key=lambda job: (job.key, job.seq)):
            self.try_start(job, now_s)
        if now_s >= self._quantum_s:
            self._quantum_s = FOREVER
            self._quantum(now_s)

    # -- the order of things

    def _admit(self, job: Job, now_s: float) -> JobState:
        name = (job.model, job.gpus)
        kind = self._kinds.get(name)
        if kind is None or self.quotas:
            check_demand(job, self.topology, self.quotas)
            kind = (self.topology.floor(job.gpus), self._sensitivity.traits(job))
            self._kinds[name] = kind
        state = JobState(job, self._seq, kind[0], kind[1], now_s)
        self._seq += 1
        self.jobs[state.id] = state
        if self._resizes:
            state.sizes = self._sizes(job)
            self.fit(state, state.sizes[0][0])
        self.policy.admit(state, now_s)
        return state

    def _sizes(self, job: Job) -> Scaling:
        """Return the sizes a job may have on this cluster."""
        sizes = self._sensitivity.model(job).sizes(job.gpus)
        return tuple(size for size in sizes if size[0] <= self.topology.gpus)

    def fit(self, job: JobState, gpus: int) -> None:
        """Let a job that holds no GPUs ask for this number from now on."""
        pace = dict(job.sizes)[gpus]
        (machine, rack, network), job.network_duty = self._sensitivity.traits(job.job, gpus)
        job.gpus = gpus
        job.floor = self.topology.floor(gpus)
        job.slow = (machine / pace, rack / pace, network / pace)

    def wait(self, job: JobState, now_s: float) -> None:
        """Put a job among the waiting ones again, after its size or order has changed."""
        job.key = self.policy.key(job, now_s)
        self._set_timers(job, now_s)
        job.allowed = self._first_allowed(job)
        self.waiting.join(job, self._quota_name(job))

    def _enqueue(
        self, job: JobState, now_s: float, *, place: bool = True, declined_since_s: float | None = None
    ) -> None:
        """Let a job wait; with `place`, start it if it fits (only when nobody else could start)."""
        job.phase = WAITING
        job.since_s = now_s
        job.clock_s = declined_since_s
        place = place and not (self._blocking and self.waiting.size)
        placement = self._find(job, job.floor) if place else None
        if placement is None:
            job.key = self.policy.key(job, now_s)
            self._set_timers(job, now_s)
            job.allowed = self._first_allowed(job)
            if place and job.allowed > job.floor:
                placement = self._find(job, job.allowed)
        if placement is not None:
            self._start(job, placement, now_s)
            return
        self.waiting.join(job, self._quota_name(job))
        if job.allowed < NETWORK:
            if job.clock_s is not None:
                self.timers.arm(job, now_s)
            elif place and self.free.total >= job.gpus:
                self._decline(job, now_s)

    @staticmethod
    def _first_allowed(job: JobState) -> Tier:
        """The farthest tier a job takes at once: one whose timers are 0."""
        rack_s, network_s = job.timers
        if rack_s > 0.0:
            return job.floor
        return NETWORK if network_s <= 0.0 else max(job.floor, RACK)

    def _find(self, job: JobState, allowed: Tier) -> Placement | None:
        """A placement for this job within a tier, its quota and what is free."""
        if self.quotas and self.over_quota(job.job.tenant, job.gpus):
            return None
        if self._obeys and job.job.machines:
            return self.free.find_shares(job.gpus, job.job.machines)
        return self.free.find(job.gpus, allowed)

    def try_start(self, job: JobState, now_s: float) -> None:
        """Start a waiting job if it fits."""
        placement = self._find(job, job.allowed)
        if placement is not None:
            self.waiting.leave(job)
            self._start(job, placement, now_s)

    def _offer(self, now_s: float) -> None:
        """Offer what is free to the waiting jobs, in order, until nobody takes it."""
        free, groups = self.free, self.waiting.groups
        if free.total < self.waiting.least:
            return
        blocking = self._blocking
        while groups and free.total:
            first: JobState | None = None
            for group in groups:
                if (blocking or free.has(group.gpus, group.tier)) and not (
                    group.tenant and self.over_quota(group.tenant, group.gpus)
                ):
                    head = group.head()
                    if first is None or (head.key, head.seq) < (first.key, first.seq):
                        first = head
            placement = None if first is None else self._find(first, first.allowed)
            if first is None or placement is None:
                break
            self.waiting.leave(first)
            self._start(first, placement, now_s)
        total = free.total
        for group in groups:
            if group.gpus <= total and group.tier < NETWORK:
                group.declines += 1
                if group.fresh:
                    fresh, group.fresh = group.fresh, []
                    for job, epoch in fresh:
                        if job.epoch == epoch:
                            self._decline(job, now_s)

    def _decline(self, job: JobState, now_s: float) -> None:
        """Start the clock of a job that could have run, had it accepted any place."""
        if job.clock_s is None:
            job.clock_s = now_s
            self._set_timers(job, now_s)
            self.timers.arm(job, now_s)

    def _set_timers(self, job: JobState, now_s: float) -> None:
        """Ask the policy how long to hold out; a timer for a tier below the job's floor is 0."""
        rack_s, network_s = self.policy.timers(job, now_s, self.waiting.size / self.topology.gpus)
        if job.floor > MACHINE:
            rack_s = 0.0
            if job.floor > RACK:
                network_s = 0.0
        job.timers = (rack_s, network_s)

    def _widen(self, job: JobState, now_s: float) -> bool:
        """A delay timer ran out: allow the next tier, unless waiting on has become worth more meanwhile."""
        assert job.clock_s is not None
        self._set_timers(job, now_s)
        waited_s = now_s - job.clock_s
        if job.timers[0 if job.allowed == MACHINE else 1] > waited_s + RENEW_AFTER_S:
            self.timers.arm(job, now_s)
            return False
        self.policy.widened(job, job.allowed, waited_s)
        self.waiting.leave(job)
        job.allowed = NETWORK if job.allowed == RACK or waited_s >= job.timers[1] else RACK
        self.waiting.join(job, self._quota_name(job))
        if job.allowed < NETWORK:
            self.timers.arm(job, now_s)
        return True

    # -- now and then

    def _quantum(self, now_s: float) -> None:
        """Once in a while: reorder, preempt, migrate, reserve."""
        policy = self.policy
        if policy.reorders and now_s >= self._reordered_s + policy.reorder_s:
            self._reordered_s = now_s
            self.waiting.reorder({job: policy.key(job, now_s) for job in self.waiting.jobs()})
        if policy.resizes:
            resize(self, now_s)
            self._offer(now_s)
        if policy.preempts:
            for job in self.waiting.jobs() if policy.rotates else self.waiting.heads(PREEMPTION_TRIES):
                make_room(self, job, now_s)
        if policy.migrates:
            migrate(self, now_s)
        if policy.reserve_after_s < FOREVER:
            if not self.claims.open:
                reserve(self, now_s)
            backfill(self, now_s)
        if policy.backfills and policy.worth_planning():
            plan_ahead(self, now_s)

    def _arm(self, now_s: float) -> None:
        """Ask to be woken for the next timer, if nobody has asked for an earlier time yet."""
        next_s = self.timers.next_s()
        if self._periodic and (
            self.waiting.size or self._restless or (self._calm and len(self.crossing) > 1)
        ):
            if self._quantum_s == FOREVER or self._quantum_s < now_s:
                self._quantum_s = now_s + self.policy.quantum_s
            next_s = min(next_s, self._quantum_s)
        if next_s < self._armed_s:
            self._armed_s = next_s
            self._commands.append(WakeAt(at_s=next_s))
