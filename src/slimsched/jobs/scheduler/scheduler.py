"""The job scheduler: decides which gang of GPUs each training job gets, and when.

A pure state machine: an event and the time go in, commands come out. The simulator and the controller of a
real Slurm drive the same machine, so a log of events and times gives the same commands again. Everything that
changes its state is in the one class of this module; what other modules keep for it (`waiting.py`, `gpus.py`,
`eviction.py`) are indices, which it alone tells what has happened.

**Phases.** A job is waiting, claiming, running or stopping; `NEXT_PHASES` in `waiting.py` says what may
follow what. A gang holds its GPUs until the driver says that it has stopped or finished.

**What is free.** Every GPU of a machine that is up is free, held by a claim, or given to exactly one gang. A
claim sets GPUs aside for one job: those of running jobs that are stopped for it, or of whoever leaves first.
GPUs that come free go to open claims before anybody else sees them, and the job starts with the last one.

**Who is looked at, and when.** Between two events nothing waits that could start. So an arriving job is only
tried itself, a timer only wakes its own job, and only freed GPUs are offered to everybody, group by group:
jobs of a group need the same, so the first of each that does not fit speaks for all.

**Delay.** A job may hold out for GPUs that are close together. It first accepts the closest tier that its
size can reach; from the first offer that it declines, timers run until it accepts a rack, and then any place.
The policy says how long they are.

**Now and then**, once per quantum of the policy, whatever the policy does of these, in this order:

* *reorder*: every waiting job gets a new place in the order;
* *resize*: every job gets the number of GPUs that the policy now thinks best; running ones stop for it;
* *make room*: running jobs are stopped, cheapest first, for a gang that then fits (also when it arrives);
* *migrate*: a running gang is stopped to go on closer together, or away from uplinks that others use;
* *reserve*: the gang that starves behind smaller ones gets a claim;
* *plan ahead*: jobs pass others where that delays nobody by all time limits.

Which job comes first, who waits for what and who may be stopped is the policy's to say (`policy.py`); how to
do it is the same for all policies. After a restart, feed JobFoundRunning for every running job, then
JobSubmitted for every waiting one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import UnknownNameError
from slimsched.jobs.domain import Job, Placement, Tier, Topology, gpus_in, where
from slimsched.jobs.scheduler.eviction import Evictable
from slimsched.jobs.scheduler.gpus import MACHINE, NETWORK, RACK, Claim, Claims, FreeGpus, Spots, StartPlan
from slimsched.jobs.scheduler.messages import (
    Command,
    Event,
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    PreemptJob,
    StartFailed,
    StartJob,
)
from slimsched.jobs.scheduler.network import Sensitivity, Traits
from slimsched.jobs.scheduler.policy import FOREVER, Policy
from slimsched.jobs.scheduler.waiting import (
    CLAIMING,
    PHASES,
    RUNNING,
    STOPPING,
    WAITING,
    JobState,
    JobTimes,
    Waiting,
    check_demand,
)

PREEMPTION_TRIES: Final = 8
"""Waiting jobs for which victims are sought at each quantum."""
RENEW_AFTER_S: Final = 60.0
"""A timer that ran out is renewed if the policy would now wait longer by at least this."""
PLANNED_JOBS: Final = 500
"""Waiting jobs that a policy that backfills plans at each quantum."""

Split = Callable[[str, Placement, FreeGpus], Placement]
"""Shares of a job's gang on the machines chosen for it, by job id, placement and what is free."""


class Domain(Struct, frozen=True, kw_only=True):
    """A machine, a rack or the cluster, with what is free in it and what a gang would need."""

    tier: Tier
    name: str
    free_gpus: int
    missing_gpus: int


class Explanation(Struct, frozen=True, kw_only=True):
    """What the scheduler knows about one job at one time."""

    job_id: str
    state: str
    gpus: int
    waited_s: float = 0.0
    queue_position: int | None = None
    allowed_tier: Tier | None = None
    next_tier: Tier | None = None
    timer_left_s: float | None = None
    declined_offers: int = 0
    nearest: Domain | None = None
    victims_considered: tuple[str, ...] = ()
    reason: str = ""


class JobScheduler:
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
        self.topology = topology  # the cluster
        self.policy = policy
        self.quotas = dict(quotas or {})  # most GPUs that a tenant may hold at once
        self.jobs: dict[str, JobState] = {}  # every job that waits or runs
        self.running: dict[str, JobState] = {}  # those that hold GPUs, stopping ones too
        self.spread: dict[str, JobState] = {}  # those of them that could be closer together
        self.crossing: dict[str, list[int]] = {}  # the racks of each gang that crosses racks
        self.waiting = Waiting()  # those that wait, in groups
        self.timers = JobTimes()  # of waiting jobs that have declined an offer
        self.free = FreeGpus(topology, calm=policy.calm)  # GPUs that nobody holds or claims
        self.claims = Claims(self.free)  # GPUs set aside, by job
        self.evictable = Evictable(self.free, policy)  # running jobs, where the policy stops any for others
        self.tenant_gpus = dict.fromkeys(self.quotas, 0)  # GPUs that tenants with a quota hold
        self.down: set[str] = set()  # machines that are lost
        self.next_gpus: dict[str, int] = {}  # how many GPUs a job goes on with that is being stopped
        self._sensitivity = sensitivity  # what the network costs each kind of job
        self._split = split  # how the engine shares gangs out; None: as we say
        self._kinds: dict[tuple[str, int], tuple[Tier, Traits]] = {}  # by model and GPUs: can run here
        self._admitted = 0  # jobs so far; each gets its number
        self._commands: list[Command] = []  # what the event under way asks for so far
        self._armed_s = FOREVER  # the earliest wake-up that was asked for
        self._quantum_s = FOREVER  # when the next quantum ends
        self._reordered_s = 0.0  # when waiting jobs last got new places
        self._preempts = policy.preempts  # of the policy, for speed: asked at every event
        self._obeys = policy.obeys
        self._blocking = policy.blocking
        self._calm = policy.calm
        self._resizes = policy.resizes
        self._periodic = (
            policy.preempts
            or policy.migrates
            or policy.resizes
            or policy.reorders
            or policy.backfills
            or policy.reserve_after_s < FOREVER
        )
        self._restless = self.running if policy.resizes else self.spread if policy.migrates else {}
        """Running jobs that may be worth another look at each quantum."""
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
        policy.begin(topology)

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Take one event into account and return what must now be done."""
        commands: list[Command] = []
        self._commands = commands
        try:
            self._handlers[type(event)](event, now_s)
        except AssertionError as error:
            error.add_note(self._story(event, now_s))
            raise
        self._arm(now_s)
        return commands

    # -- events

    def _submitted(self, event: JobSubmitted, now_s: float) -> None:
        job = self._admit(event.job, now_s)
        job.served_s = event.served_s
        self._wait(job, now_s, declined_since_s=event.declined_since_s)
        if job.phase == WAITING and self._preempts:
            self._make_room(job, now_s)

    def _found_running(self, event: JobFoundRunning, now_s: float) -> None:
        known = self.running.get(event.job.id)
        if known is not None:
            self._correct(known, event.placement, now_s)
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
        if job is not None and job.phase >= RUNNING:
            self._vacate(job, now_s, event.served_s)
            job.served_s = event.served_s
            job.preemptions += 1
            self._go_on(job, now_s)

    def _start_failed(self, event: StartFailed, now_s: float) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None and job.phase >= RUNNING:
            self._vacate(job, now_s, None)
            self._go_on(job, now_s)

    def _node_down(self, event: NodeDown, now_s: float) -> None:
        """Stop the gangs on a machine that is lost; claims on it come to nothing."""
        name = event.machine
        if name in self.down:
            return
        left = self.free.by_machine[self.free.index[name]]
        if left:
            self.free.take(((name, left),))
        self.down.add(name)
        claimants = [claim.job for claim in self.claims.open.values() if name in claim.held]
        for job in claimants:
            self.claims.dissolve(job, self.down)
        for job in list(self.running.values()):
            if job.phase == RUNNING and any(machine == name for machine, _ in job.placement):
                self._stop(job, f"machine {name} is down")
        for job in claimants:
            if job.phase == CLAIMING:
                job.enter(WAITING)
                self._wait(job, now_s, place=False)
        self._offer(now_s)

    def _node_up(self, event: NodeUp, now_s: float) -> None:
        """Give out what nobody holds of a machine that is back."""
        name = event.machine
        if name not in self.down:
            return
        self.down.discard(name)
        used = sum(g for job in self.running.values() for machine, g in job.placement if machine == name)
        back = self.free.capacity[self.free.index[name]] - used
        if back:
            self.free.give(((name, back),))
            self._fill_claims(((name, back),), now_s)
        self._offer(now_s)

    def _woken(self, event: Wake, now_s: float) -> None:
        self._armed_s = FOREVER
        widened = [job for job, _ in self.timers.due(now_s) if self._widen(job, now_s)]
        for job in sorted(widened, key=lambda job: (job.key, job.seq)):
            placement = self._find(job, job.allowed)
            if placement is not None:
                self._start(job, placement, now_s)
        if now_s >= self._quantum_s:
            self._quantum_s = FOREVER
            self._quantum(now_s)

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

    def _story(self, event: Event, now_s: float) -> str:
        """Tell what led to an error that should not happen."""
        job_id = getattr(event, "job_id", "")
        if isinstance(event, JobSubmitted | JobFoundRunning):
            job_id = event.job.id
        job, claim = self.jobs.get(job_id), self.claims.open.get(job_id)
        return (
            f"at {now_s:.3f} s the scheduler was told {event}; {job.story() if job else 'an unknown job'}; "
            f"{f'it claims {claim.placement}; ' if claim else ''}"
            f"{len(self.running)} jobs run, {self.waiting.size} wait, {self.free.total} GPUs are free"
        )

    # -- waiting

    def _admit(self, job: Job, now_s: float) -> JobState:
        """Note a job that is new here, if it can ever run here."""
        name = (job.model, job.gpus)
        kind = self._kinds.get(name)
        if kind is None or self.quotas:
            check_demand(job, self.topology, self.quotas)
            kind = (self.topology.floor(job.gpus), self._sensitivity.traits(job))
            self._kinds[name] = kind
        floor, traits = kind
        state = JobState(job, job.id, self._admitted, job.gpus, floor, floor, floor, *traits, now_s, now_s)
        self._admitted += 1
        self.jobs[state.id] = state
        if self._resizes:
            sizes = self._sensitivity.model(job).sizes(job.gpus)
            state.sizes = tuple(size for size in sizes if size[0] <= self.topology.gpus)
            self._fit(state, state.sizes[0][0])
        self.policy.admit(state, now_s)
        return state

    def _fit(self, job: JobState, gpus: int) -> None:
        """Let a job that holds no GPUs ask for this number from now on."""
        pace = dict(job.sizes)[gpus]
        (machine, rack, network), job.network_duty = self._sensitivity.traits(job.job, gpus)
        job.gpus = gpus
        job.floor = self.topology.floor(gpus)
        job.slow = (machine / pace, rack / pace, network / pace)

    def _wait(
        self, job: JobState, now_s: float, *, place: bool = True, declined_since_s: float | None = None
    ) -> None:
        """Let a job wait; with `place`, start it if it fits (only when nobody else could start)."""
        job.since_s = now_s
        job.clock_s = declined_since_s
        place = place and not (self._blocking and self.waiting.size)
        placement = self._find(job, job.floor) if place else None
        if placement is None:
            self._rank(job, now_s)
            if place and job.allowed > job.floor:
                placement = self._find(job, job.allowed)
        if placement is not None:
            self._start(job, placement, now_s)
            return
        self.waiting.join(job, self._quota_name(job))
        if job.allowed < NETWORK:
            if job.clock_s is not None:
                self._arm_timer(job, now_s)
            elif place and self.free.total >= job.gpus:
                self._decline(job, now_s)

    def _rank(self, job: JobState, now_s: float) -> None:
        """Ask the policy where a job stands in the order and how long it holds out."""
        job.key = self.policy.key(job, now_s)
        self._set_timers(job, now_s)
        rack_s, network_s = job.timers
        if rack_s > 0.0:
            job.allowed = job.floor
        else:
            job.allowed = NETWORK if network_s <= 0.0 else max(job.floor, RACK)

    def _quota_name(self, job: JobState) -> str:
        """The tenant, if it has a quota."""
        return job.job.tenant if self.quotas and job.job.tenant in self.quotas else ""

    def over_quota(self, tenant: str, gpus: int) -> bool:
        """Whether `gpus` more would exceed a tenant's quota."""
        quota = self.quotas.get(tenant)
        return quota is not None and self.tenant_gpus[tenant] + gpus > quota

    def _find(self, job: JobState, allowed: Tier) -> Placement | None:
        """A placement for this job within a tier, its quota and what is free."""
        if self.quotas and self.over_quota(job.job.tenant, job.gpus):
            return None
        if self._obeys and job.job.machines:
            return self.free.find_shares(job.gpus, job.job.machines)
        return self.free.find(job.gpus, allowed)

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
            self._arm_timer(job, now_s)

    def _arm_timer(self, job: JobState, now_s: float) -> None:
        """Note when the tier that the job now holds out for runs out."""
        assert job.clock_s is not None
        self.timers.add(max(now_s, job.clock_s + job.timers[job.allowed]), job)

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
        if job.timers[job.allowed] > waited_s + RENEW_AFTER_S:
            self._arm_timer(job, now_s)
            return False
        self.policy.widened(job, job.allowed, waited_s)
        self.waiting.leave(job)
        job.allowed = NETWORK if job.allowed == RACK or waited_s >= job.timers[1] else RACK
        self.waiting.join(job, self._quota_name(job))
        if job.allowed < NETWORK:
            self._arm_timer(job, now_s)
        return True

    # -- starting and stopping

    def _start(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Start a job, new or waiting, on these free GPUs."""
        if job.group is not None:
            self.waiting.leave(job)
        if self._split is not None and len(placement) > 1:
            placement = self._split(job.id, placement, self.free)
        spots = self.free.spots(placement)
        self.free.take_at(spots)
        self._launch(job, placement, spots, now_s)

    def _launch(self, job: JobState, placement: Placement, spots: Spots, now_s: float) -> None:
        """Start a job on GPUs that are already taken for it."""
        job.waited_s += now_s - job.since_s
        declined_for_s = 0.0 if job.clock_s is None else now_s - job.clock_s
        self._occupy(job, placement, spots, now_s)
        self.policy.launched(job, job.tier, declined_for_s, now_s)
        self._commands.append(StartJob(job_id=job.id, placement=placement))

    def _occupy(self, job: JobState, placement: Placement, spots: Spots, now_s: float) -> None:
        job.enter(RUNNING)
        job.placement = placement
        job.spots = spots
        job.tier = tier = self.topology.tier(placement)
        machine, rack, network = job.slow
        job.slow_here = machine if tier == MACHINE else network if tier == NETWORK else rack
        job.since_s = now_s
        self.running[job.id] = job
        if tier > job.floor:
            self.spread[job.id] = job
        if tier == NETWORK:
            rack_of, crossing = self.free.rack_of, self.free.crossing
            racks = list(dict.fromkeys([rack_of[machine] for machine, _ in spots]))
            self.crossing[job.id] = racks
            for uplink in racks:
                crossing[uplink] += 1
        if self._preempts:
            self.evictable.add(job, now_s)
        if self.quotas and job.job.tenant in self.quotas:
            self.tenant_gpus[job.job.tenant] += job.gpus

    def _vacate(self, job: JobState, now_s: float, served_s: float | None) -> None:
        """Take a job off its GPUs; `served_s` is its service in all, if known."""
        del self.running[job.id]
        tier = job.tier
        if tier > job.floor:
            del self.spread[job.id]
        if tier == NETWORK:
            for rack in self.crossing.pop(job.id):
                self.free.crossing[rack] -= 1
        if self._preempts:
            self.evictable.remove(job)
        job.epoch += 1
        run_s = now_s - job.since_s
        job.ran_s += run_s
        self.policy.left(job, tier, run_s, None if served_s is None else served_s - job.served_s)
        if self.quotas and job.job.tenant in self.quotas:
            self.tenant_gpus[job.job.tenant] -= job.gpus
        placement, job.placement = job.placement, ()
        if self.down:
            placement = tuple(part for part in placement if part[0] not in self.down)
            self.free.give(placement)
        else:
            self.free.give_at(job.spots)
        self._fill_claims(placement, now_s)

    def _go_on(self, job: JobState, now_s: float) -> None:
        """Let a job that has stopped start on its claim, or wait again."""
        if self._resizes:
            self._fit(job, self.next_gpus.pop(job.id, job.gpus))
        claim = self.claims.open.get(job.id)
        if claim is None:
            job.enter(WAITING)
            self._wait(job, now_s, place=False)
        else:
            job.enter(CLAIMING)
            self._launch_clear(claim, now_s)
        self._offer(now_s)

    def _correct(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Note that the engine split a gang over its machines in another way than asked for."""
        self.evictable.remove(job)
        job.epoch += 1
        self.free.give(job.placement)
        self.free.take(placement)
        job.placement = placement
        job.spots = self.free.spots(placement)
        if self._preempts:
            self.evictable.add(job, now_s)

    def _stop(self, job: JobState, reason: str) -> None:
        """Ask for a running job to be stopped."""
        job.enter(STOPPING)
        self.evictable.remove(job)
        self._commands.append(PreemptJob(job_id=job.id, reason=reason))

    # -- claims

    def _claim(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Set these GPUs aside for a job, the missing ones as they come free; start it if none is missing."""
        if job.phase == WAITING:
            self.waiting.leave(job)
            job.enter(CLAIMING)
        self._launch_clear(self.claims.add(job, placement), now_s)

    def _fill_claims(self, placement: Placement, now_s: float) -> None:
        """Let claims have what has come free; the rest is for everybody."""
        if self.claims.open:
            for claim in self.claims.missing(placement):
                self.claims.fill(claim, placement)
                self._launch_clear(claim, now_s)

    def _launch_clear(self, claim: Claim, now_s: float) -> None:
        """Start a claim's job if it has stopped where it was and no GPU is missing."""
        if not claim.missing_total and claim.job.phase == CLAIMING:
            del self.claims.open[claim.job.id]
            self._launch(claim.job, claim.placement, self.free.spots(claim.placement), now_s)

    # -- now and then

    def _quantum(self, now_s: float) -> None:
        """Do what the policy does once in a while."""
        policy = self.policy
        if policy.reorders and now_s >= self._reordered_s + policy.reorder_s:
            self._reordered_s = now_s
            self.waiting.reorder({job: policy.key(job, now_s) for job in self.waiting.jobs()})
        if policy.resizes:
            self._resize(now_s)
            self._offer(now_s)
        if policy.preempts:
            for job in self.waiting.jobs() if policy.rotates else self.waiting.heads(PREEMPTION_TRIES):
                self._make_room(job, now_s)
        if policy.migrates:
            self._migrate(now_s)
        if policy.reserve_after_s < FOREVER:
            self._reserve(now_s)
        if policy.backfills and policy.worth_planning():
            self._plan_ahead(now_s)

    def _resize(self, now_s: float) -> None:
        """Give every job the number of GPUs that the policy now thinks best; 0 lets it wait."""
        running = [job for job in self.running.values() if job.phase == RUNNING]
        jobs = [*self.waiting.jobs(), *running]
        held = sum(job.gpus for job in self.running.values())
        to_give = max(0, self.free.total + held - sum(self.next_gpus.values()))
        for job, gpus in zip(jobs, self.policy.sizes(jobs, to_give, now_s), strict=True):
            wanted = gpus or job.sizes[0][0]
            if job.phase == RUNNING:
                if gpus != job.gpus:
                    self._stop(job, f"goes on with {gpus} GPUs" if gpus else "lets others run")
                    self.next_gpus[job.id] = wanted
            elif wanted != job.gpus or job.key != self.policy.key(job, now_s):
                self.waiting.leave(job)
                if wanted != job.gpus:
                    self._fit(job, wanted)
                self._rank(job, now_s)
                self.waiting.join(job, self._quota_name(job))

    def _make_room(self, job: JobState, now_s: float) -> None:
        """Stop running jobs for a waiting one if it then fits at its allowed tier."""
        if self.quotas and self.over_quota(job.job.tenant, job.gpus):
            return
        eviction = self.evictable.find(job, now_s)
        if eviction is not None:
            for victim in eviction.victims:
                self._stop(victim, f"makes room for job {job.id}")
            self._claim(job, eviction.placement, now_s)

    def _migrate(self, now_s: float) -> None:
        """Move running jobs closer together where free GPUs allow it and the policy thinks it pays."""
        for job in list(self.spread.values()):
            if job.phase != RUNNING:
                continue
            placement = self.free.find(job.gpus, Tier(job.tier - 1))
            if placement and self.policy.should_move(job, self.topology.tier(placement), now_s):
                self._stop(job, "moves to a closer placement")
                self._claim(job, placement, now_s)
        if self._calm and len(self.crossing) > 1:
            self._separate(now_s)

    def _separate(self, now_s: float) -> None:
        """Move one gang that shares its uplinks to racks whose uplinks no other uses."""
        for job_id, racks in self.crossing.items():
            job = self.running[job_id]
            others = max(self.free.crossing[rack] for rack in racks) - 1
            if job.phase != RUNNING or not others or not self.policy.should_separate(job, others, now_s):
                continue
            up = tuple(part for part in job.placement if part[0] not in self.down)
            placement = self.free.find_quiet(job.gpus, racks, besides=up)
            if placement is not None:
                self._stop(job, "moves to quiet uplinks")
                self._claim(job, placement, now_s)
                return

    def _reserve(self, now_s: float) -> None:
        """Give the longest waiting job a claim once it has waited too long."""
        if self.claims.open or now_s - self.waiting.longest_since_s < self.policy.reserve_after_s:
            return
        job = self.waiting.longest()
        if job is None or now_s - job.since_s < self.policy.reserve_after_s:
            return
        placement = _nearest_to_free(self, job)
        if placement is not None:
            self._claim(job, placement, now_s)

    def _plan_ahead(self, now_s: float) -> None:
        """Plan waiting jobs in order on machines as time limits will free them; start those of now."""
        free = self.free
        ends = [
            (inf if job.job.limit_s is None else job.since_s + job.job.limit_s, machine, gpus)
            for job in self.running.values()
            for machine, gpus in job.spots
        ]
        plan = StartPlan(now_s, free, ends, self.policy.resolution_s)
        for job in self.waiting.jobs()[:PLANNED_JOBS]:
            if not free.total:
                break
            length_s = inf if job.job.limit_s is None else job.job.limit_s
            machines = job.job.machines or -(-job.gpus // self.topology.largest_machine)
            slot = plan.find(-(-job.gpus // machines), machines, length_s)
            if slot is not None and slot.start_s == now_s:
                placement = free.find_shares(job.gpus, machines, without=plan.blocked(now_s, slot.end_s))
                if placement is not None:
                    self._start(job, placement, now_s)
                    plan.take(job.spots, slot.end_s)
            elif slot is not None:
                plan.reserve(slot)

    # -- looking on

    def explain(self, job_id: str, *, now_s: float) -> Explanation:
        """Say why a job waits, or where it runs."""
        job = self.jobs.get(job_id)
        if job is None:
            raise UnknownNameError("job", job_id, sorted(self.jobs)[:8] or ["none wait or run"])
        if job.phase >= RUNNING:
            stopping = ", being stopped" if job.phase == STOPPING else ""
            return Explanation(
                job_id=job.id,
                state=PHASES[job.phase],
                gpus=job.gpus,
                waited_s=job.waited_s,
                reason=f"runs on {where(job.placement)} ({job.tier.name.lower()} tier){stopping}",
            )
        nearest = _nearest(self, job)
        timer_s = inf if job.allowed == NETWORK else job.timers[job.allowed]
        return Explanation(
            job_id=job.id,
            state=PHASES[job.phase],
            gpus=job.gpus,
            waited_s=job.waited_s + now_s - job.since_s,
            queue_position=1 + self.waiting.jobs().index(job) if job.phase == WAITING else None,
            allowed_tier=job.allowed,
            next_tier=Tier(job.allowed + 1) if timer_s < inf else None,
            timer_left_s=job.clock_s + timer_s - now_s if timer_s < inf and job.clock_s is not None else None,
            declined_offers=job.declined + (job.group.declines if job.group else 0),
            nearest=nearest,
            victims_considered=job.victims_considered,
            reason=_reason(self, job, nearest),
        )

    def validate(self) -> None:
        """Raise an AssertionError unless all that is kept agrees: for tests, after each event."""
        for job in self.jobs.values():
            wrong = _disagreement(self, job)
            assert not wrong, f"{wrong}: {job.story()}"
        for name, known in (("running", self.running), ("spread", self.spread), ("crossing", self.crossing)):
            assert known.keys() <= self.jobs.keys(), f"a job that is gone is still among those {name}"
        given, claimed = Counter[str](), Counter[str]()
        for job in self.running.values():
            given.update(dict(job.placement))
        for claim in self.claims.open.values():
            claimed.update(claim.held)
        for name, gpus, free in zip(self.free.names, self.free.capacity, self.free.by_machine, strict=True):
            counts = f"{name} has {gpus} GPUs: {free} free, {claimed[name]} claimed, {given[name]} given"
            if name in self.down:
                assert not free + claimed[name], f"{counts}; but it is down"
            else:
                assert free + claimed[name] + given[name] == gpus, counts
        for rack, crossing in enumerate(self.free.crossing):
            crossed = sum(rack in racks for racks in self.crossing.values())
            assert crossing == crossed, f"{crossed} gangs cross rack {rack}, but {crossing} are counted"
        for tenant, gpus in self.tenant_gpus.items():
            have = sum(job.gpus for job in self.running.values() if job.job.tenant == tenant)
            assert gpus == have, f"tenant '{tenant}' holds {have} GPUs, but {gpus} are counted"
        assert self._armed_s <= self.timers.next_s(), "nobody has asked for a wake-up at the next timer"
        self.free.validate()
        self.claims.validate()
        self.waiting.validate()
        self.evictable.validate(self.running.values())


# -- Readers of the scheduler's state: they change nothing.


def _disagreement(scheduler: JobScheduler, job: JobState) -> str:
    """What of a job does not agree with the rest, if anything."""
    runs = job.phase >= RUNNING
    claim = scheduler.claims.open.get(job.id)
    group = job.group
    wrong = {
        "it runs, or it does not, and the others think otherwise": runs != (job.id in scheduler.running),
        "it waits in a group, or should": (group is not None) != (job.phase == WAITING),
        "its group needs something else": group is not None
        and (group.gpus, group.tier, group.tenant) != (job.gpus, job.allowed, scheduler._quota_name(job)),
        "it has not as many GPUs as it should": gpus_in(job.placement) != (job.gpus if runs else 0),
        "its machines are not those of its placement": runs
        and job.spots != scheduler.free.spots(job.placement),
        "it could be closer together, or could not": (job.id in scheduler.spread)
        != (runs and job.tier > job.floor),
        "it crosses racks, or does not": (job.id in scheduler.crossing) != (runs and job.tier == NETWORK),
        "it waits for GPUs to be cleared, and none is missing": job.phase == CLAIMING
        and (claim is None or not claim.missing_total),
        "it has a claim that it cannot need": claim is not None and job.phase not in (CLAIMING, STOPPING),
        "its size is to change, but it is not being stopped": job.id in scheduler.next_gpus
        and job.phase != STOPPING,
    }
    return next((what for what, is_so in wrong.items() if is_so), "")


def _nearest_to_free(scheduler: JobScheduler, job: JobState) -> Placement | None:
    """The machines nearest to being free for this gang, within its allowed tier."""
    topology, free = scheduler.topology, scheduler.free
    up = (i for i, name in enumerate(free.names) if name not in scheduler.down)
    order = sorted(up, key=lambda i: (-free.by_machine[i], i))
    domains = [order]
    if job.allowed == MACHINE:
        domains = [[i] for i in order]
    elif job.allowed == RACK:
        racks = sorted(range(len(topology.racks)), key=lambda rack: (-free.by_rack[rack], rack))
        domains = [[i for i in order if free.rack_of[i] == rack] for rack in racks]
    return next((placement for inside in domains if (placement := _fill(free, inside, job.gpus))), None)


def _fill(free: FreeGpus, order: list[int], gpus: int) -> Placement | None:
    """All GPUs of these machines, in order, until there are enough."""
    parts: list[tuple[str, int]] = []
    for i in order:
        take = min(gpus, free.capacity[i])
        if take:
            parts.append((free.names[i], take))
            gpus -= take
    return None if gpus else tuple(parts)


def _nearest(scheduler: JobScheduler, job: JobState) -> Domain:
    """The domain of the allowed tier that lacks the fewest GPUs."""
    free, topology = scheduler.free, scheduler.topology
    if job.allowed == MACHINE:
        machines = range(len(free.names))
        best = max(machines, key=lambda i: (free.capacity[i] >= job.gpus, free.by_machine[i], -i))
        name, have = free.names[best], free.by_machine[best]
    elif job.allowed == RACK:
        best = max(range(len(topology.racks)), key=lambda r: (free.by_rack[r], -r))
        name, have = topology.racks[best], free.by_rack[best]
    else:
        name, have = topology.name, free.total
    return Domain(tier=job.allowed, name=name, free_gpus=have, missing_gpus=max(0, job.gpus - have))


def _reason(scheduler: JobScheduler, job: JobState, nearest: Domain) -> str:
    """Why a job waits, in words that its user can act on."""
    tenant, free = job.job.tenant, scheduler.free.total
    if job.phase == CLAIMING:
        missing = scheduler.claims.open[job.id].missing_total
        return f"GPUs are being cleared for it: {missing} of {job.gpus} still missing"
    if scheduler.over_quota(tenant, job.gpus):
        used, quota = scheduler.tenant_gpus[tenant], scheduler.quotas[tenant]
        return f"tenant '{tenant}' uses {used} of its quota of {quota} GPUs"
    if free < job.gpus:
        return f"{job.gpus} GPUs asked for, {free} free in the whole cluster"
    if scheduler.policy.blocking and not nearest.missing_gpus:
        return "an earlier job is first in line"
    return (
        f"{free} GPUs are free but spread too far: it holds out for one "
        f"{job.allowed.name.lower()} and the nearest lacks {nearest.missing_gpus}"
    )
