"""The job scheduler: decides which gang of GPUs each training job gets, and when.

A pure state machine: an event and the time go in, commands come out. The simulator and the controller of a
real Slurm drive the same machine, so a log of events and times gives the same commands again.

How it works. Between two events nothing waits that could start. So an arriving job is only tried itself, a
timer only wakes its own job, and only freed GPUs are offered to everybody, group by group: jobs of a group
need the same, so the first of each that does not fit speaks for all (`waiting.py`). A job may hold out for
GPUs that are close together until its delay timer ends. Which job comes first, who waits for what and who may
be stopped is the policy's to say (`policy.py`); how to do it is the same for all policies:

* a gang starts on the best fit of free GPUs, or claims GPUs that are still being cleared (`gpus.py`);
* preemption stops running jobs, cheapest first, to make room for a waiting one (`eviction.py`);
* a reservation sets GPUs aside for a gang that starves behind smaller ones, and others backfill around it;
* a job that changes its number of GPUs is stopped, and goes on with more or fewer.

A job is waiting, claiming, running or stopping; `waiting.py` has the table. After a restart, feed
JobFoundRunning for every running job, then JobSubmitted for every waiting one.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import UnknownNameError
from slimsched.jobs.domain import Job, Placement, Scaling, Tier, Topology
from slimsched.jobs.scheduler.eviction import Evictable
from slimsched.jobs.scheduler.gpus import Claim, Claims, FreeGpus, Spots, StartPlan
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
    DelayTimers,
    JobState,
    Waiting,
    check_demand,
)

# -- Which gang holds which GPUs: the half of the scheduler that keeps the books.

MACHINE: Final = Tier.MACHINE
NETWORK: Final = Tier.NETWORK

Split = Callable[[str, Placement, FreeGpus], Placement]
"""Shares of a job's gang on the machines chosen for it, by job id, placement and what is free."""


class Occupancy:
    """GPUs free, held, claimed and lost; waiting and running jobs; quotas."""

    def __init__(
        self, *, topology: Topology, policy: Policy, quotas: Mapping[str, int] | None, split: Split | None
    ) -> None:
        self.topology = topology
        self.policy = policy
        self.free = FreeGpus(topology, calm=policy.calm)
        self.waiting = Waiting()
        self.jobs: dict[str, JobState] = {}
        self.running: dict[str, JobState] = {}
        self.spread: dict[str, JobState] = {}
        self.crossing: dict[str, list[int]] = {}
        self.claims = Claims(self.free)
        self.evictable = Evictable(self.free, policy)
        self.quotas = dict(quotas or {})
        self.tenant_gpus = dict.fromkeys(self.quotas, 0)
        self.down: set[str] = set()
        self._split = split
        self._preempts = policy.preempts
        self._commands: list[Command] = []

    def over_quota(self, tenant: str, gpus: int) -> bool:
        """Whether `gpus` more would exceed a tenant's quota."""
        quota = self.quotas.get(tenant)
        return quota is not None and self.tenant_gpus[tenant] + gpus > quota

    def _quota_name(self, job: JobState) -> str:
        """The tenant, if it has a quota."""
        return job.job.tenant if self.quotas and job.job.tenant in self.quotas else ""

    def _start(self, job: JobState, placement: Placement, now_s: float) -> None:
        if self._split is not None and len(placement) > 1:
            placement = self._split(job.id, placement, self.free)
        spots = self.free.spots(placement)
        self.free.take_at(spots)
        self._launch(job, placement, spots, now_s)

    def start_at(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Start a waiting job on these free GPUs."""
        self.waiting.leave(job)
        self._start(job, placement, now_s)

    def start_on_held(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Start a waiting job on GPUs that a claim has lent it."""
        self.waiting.leave(job)
        self._launch(job, placement, self.free.spots(placement), now_s)

    def _launch(self, job: JobState, placement: Placement, spots: Spots, now_s: float) -> None:
        """Start a job on GPUs that are already taken for it."""
        waited_s = now_s - job.since_s
        job.waited_s += waited_s
        declined_for_s = 0.0 if job.clock_s is None else now_s - job.clock_s
        self._occupy(job, placement, spots, now_s)
        self.policy.launched(job, job.tier, declined_for_s, now_s)
        self._commands.append(StartJob(job_id=job.id, placement=placement))

    def _occupy(self, job: JobState, placement: Placement, spots: Spots, now_s: float) -> None:
        job.placement = placement
        job.spots = spots
        tier = MACHINE if len(spots) == 1 else self.free.tier(spots)
        job.tier = tier
        machine, rack, network = job.slow
        job.slow_here = machine if tier == MACHINE else network if tier == NETWORK else rack
        job.phase = RUNNING
        job.since_s = now_s
        self.running[job.id] = job
        if tier > job.floor:
            self.spread[job.id] = job
        if tier == NETWORK:
            self._cross(job)
        if self._preempts:
            self.evictable.add(job, now_s)
        if self.quotas and job.job.tenant in self.quotas:
            self.tenant_gpus[job.job.tenant] += job.gpus

    def _cross(self, job: JobState) -> None:
        """Count a gang on the uplinks of its racks."""
        rack_of = self.free.rack_of
        racks = list(dict.fromkeys([rack_of[machine] for machine, _ in job.spots]))
        self.crossing[job.id] = racks
        for rack in racks:
            self.free.crossing[rack] += 1

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

    def _fill_claims(self, placement: Placement, now_s: float) -> None:
        """Let claims have what has come free; the rest is for everybody."""
        if self.claims.open:
            for claim in self.claims.missing(placement):
                self.claims.fill(claim, placement)
                self._launch_clear(claim, now_s)

    def stop(self, job: JobState, reason: str) -> None:
        """Ask for a running job to be stopped."""
        job.phase = STOPPING
        self.evictable.remove(job)
        self._commands.append(PreemptJob(job_id=job.id, reason=reason))

    def claim(
        self, job: JobState, placement: Placement, now_s: float, *, ready_s: float | None = None
    ) -> None:
        """Set these GPUs aside for a job, the missing ones as they come free; start it if none is missing."""
        if job.phase == WAITING:
            self.waiting.leave(job)
            job.phase = CLAIMING
        self._launch_clear(self.claims.add(job, placement, ready_s=ready_s), now_s)

    def _launch_clear(self, claim: Claim, now_s: float) -> None:
        """Start a claim's job if it has stopped where it was and no GPU is missing."""
        if not claim.missing_total and claim.job.phase == CLAIMING:
            self.claims.close(claim)
            self._launch(claim.job, claim.placement, self.free.spots(claim.placement), now_s)

    def correct(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Note that the engine split a gang over its machines in another way than asked for."""
        self.evictable.remove(job)
        job.epoch += 1
        self.free.give(job.placement)
        self.free.take(placement)
        job.placement = placement
        job.spots = self.free.spots(placement)
        if self._preempts:
            self.evictable.add(job, now_s)

    # -- machines

    def _lose(self, name: str) -> list[JobState]:
        """A machine is gone: stop the gangs on it; returns the jobs whose claims came to nothing."""
        left = self.free.by_machine[self.free.index[name]]
        self.free.take(((name, left),))
        self.down.add(name)
        claimants = [claim.job for claim in self.claims.open.values() if name in claim.held]
        for job in claimants:
            self.claims.dissolve(job, self.down)
        for job in list(self.running.values()):
            if job.phase == RUNNING and any(machine == name for machine, _ in job.placement):
                self.stop(job, f"machine {name} is down")
        return [job for job in claimants if job.phase == CLAIMING]

    def _regain(self, name: str, now_s: float) -> None:
        """A machine is back: what nobody holds of it is free."""
        self.down.discard(name)
        used = sum(g for job in self.running.values() for machine, g in job.placement if machine == name)
        machine = self.topology.machines[self.free.index[name]]
        placement = ((name, machine.gpus - used),)
        self.free.give(placement)
        self._fill_claims(placement, now_s)


# -- Stopping running jobs: to make room for a waiting gang, or to move one closer together.


def make_room(scheduler: "JobScheduler", job: JobState, now_s: float) -> None:
    """Stop running jobs for a waiting one if it then fits at its allowed tier."""
    if scheduler.quotas and scheduler.over_quota(job.job.tenant, job.gpus):
        return
    eviction = scheduler.evictable.find(job, now_s)
    if eviction is not None:
        for victim in eviction.victims:
            scheduler.stop(victim, f"makes room for job {job.id}")
        scheduler.claim(job, eviction.placement, now_s)


def migrate(scheduler: "JobScheduler", now_s: float) -> None:
    """Move running jobs closer together where free GPUs allow it and the policy thinks it pays."""
    for job in list(scheduler.spread.values()):
        if job.phase != RUNNING:
            continue
        placement = scheduler.free.find(job.gpus, Tier(job.tier - 1))
        if placement is None:
            continue
        if scheduler.policy.should_move(job, scheduler.topology.tier(placement), now_s):
            scheduler.stop(job, "moves to a closer placement")
            scheduler.claim(job, placement, now_s)
    if scheduler.policy.calm and len(scheduler.crossing) > 1:
        _separate(scheduler, now_s)


def _separate(scheduler: "JobScheduler", now_s: float) -> None:
    """Move one gang that shares its uplinks to racks where no other crosses; its own GPUs count as free."""
    free = scheduler.free
    for job_id, racks in scheduler.crossing.items():
        job = scheduler.running[job_id]
        others = max(free.crossing[rack] for rack in racks) - 1
        if job.phase != RUNNING or not others or not scheduler.policy.should_separate(job, others, now_s):
            continue
        placement = _without(scheduler, job, racks)
        if placement is not None:
            scheduler.stop(job, "moves to quiet uplinks")
            scheduler.claim(job, placement, now_s)
            return


def _without(scheduler: "JobScheduler", job: JobState, racks: list[int]) -> Placement | None:
    """Find quiet racks for a gang as if its own GPUs were free."""
    free = scheduler.free
    up = tuple(part for part in job.placement if part[0] not in scheduler.down)
    if not free.has_quiet(job.gpus, len(racks), without=up, crossed=racks):
        return None
    free.give(up)
    for rack in racks:
        free.crossing[rack] -= 1
    placement = free.find_quiet(job.gpus, len(racks))
    for rack in racks:
        free.crossing[rack] += 1
    free.take(up)
    return placement


# -- Reservations with backfill: a gang that starves behind smaller ones gets GPUs set aside as they come
# free.
#
# Where everybody on those machines has a time limit it is known when they will all be free at the latest;
# until then, waiting jobs whose own limit ends earlier may borrow what is held already.

BACKFILL_TRIES = 8
"""Waiting jobs that are offered held GPUs at each quantum."""
PLANNED_JOBS = 500
"""Waiting jobs that a policy that backfills plans at each quantum."""


def reserve(scheduler: "JobScheduler", now_s: float) -> None:
    """Give the longest waiting job a claim once it has waited too long."""
    waiting = scheduler.waiting
    if now_s - waiting.longest_since_s < scheduler.policy.reserve_after_s:
        return
    job = waiting.longest()
    if job is None or now_s - job.since_s < scheduler.policy.reserve_after_s:
        return
    placement = _target(scheduler, job)
    if placement is not None:
        scheduler.claim(job, placement, now_s, ready_s=_ready_s(scheduler, placement, now_s))


def backfill(scheduler: "JobScheduler", now_s: float) -> None:
    """Lend held GPUs to waiting jobs that will have returned them in time."""
    for claim in list(scheduler.claims.open.values()):
        if claim.ready_s is None or claim.job.phase != CLAIMING:
            continue
        for job in scheduler.waiting.heads(BACKFILL_TRIES):
            limit_s = job.job.limit_s
            if limit_s is None or now_s + limit_s > claim.ready_s:
                continue
            if scheduler.over_quota(job.job.tenant, job.gpus):
                continue
            machine = next((name for name, gpus in claim.held.items() if gpus >= job.gpus), None)
            if machine is not None:
                claim.lend(machine, job.gpus)
                scheduler.start_on_held(job, ((machine, job.gpus),), now_s)


def plan_ahead(scheduler: "JobScheduler", now_s: float) -> None:
    """Plan waiting jobs in order on the machines that will be free by all time limits; start those of now."""
    free = scheduler.free
    plan = StartPlan(now_s, free, _ends(scheduler), scheduler.policy.resolution_s)
    for job in scheduler.waiting.jobs()[:PLANNED_JOBS]:
        if not free.total:
            break
        length_s = inf if job.job.limit_s is None else job.job.limit_s
        machines = job.job.machines or -(-job.gpus // scheduler.topology.largest_machine)
        slot = plan.find(-(-job.gpus // machines), machines, length_s)
        if slot is not None and slot.start_s == now_s:
            placement = free.find_shares(job.gpus, machines, without=plan.blocked(now_s, slot.end_s))
            if placement is not None:
                scheduler.start_at(job, placement, now_s)
                plan.take([(free.index[name], gpus) for name, gpus in job.placement], slot.end_s)
        elif slot is not None:
            plan.reserve(slot)


def _ends(scheduler: "JobScheduler") -> list[tuple[float, int, int]]:
    """When every running job must end, on which machine and with how many GPUs there."""
    index = scheduler.free.index
    return [
        (inf if job.job.limit_s is None else job.since_s + job.job.limit_s, index[name], gpus)
        for job in scheduler.running.values()
        for name, gpus in job.placement
    ]


def _target(scheduler: "JobScheduler", job: JobState) -> Placement | None:
    """The machines nearest to being free for this gang, within its allowed tier."""
    topology, free = scheduler.topology, scheduler.free
    up = [m.name not in scheduler.down for m in topology.machines]
    order = sorted(
        (i for i in range(len(topology.machines)) if up[i]),
        key=lambda i: (-free.by_machine[i], i),
    )
    if job.allowed == Tier.NETWORK:
        return _fill(scheduler, order, job.gpus)
    if job.allowed == Tier.MACHINE:
        fitting = [i for i in order if topology.machines[i].gpus >= job.gpus]
        return _fill(scheduler, fitting[:1], job.gpus)
    for rack in sorted(range(len(topology.racks)), key=lambda rack: (-free.by_rack[rack], rack)):
        placement = _fill(scheduler, [i for i in order if free.rack_of[i] == rack], job.gpus)
        if placement is not None:
            return placement
    return None


def _fill(scheduler: "JobScheduler", order: list[int], gpus: int) -> Placement | None:
    parts: list[tuple[str, int]] = []
    for i in order:
        take = min(gpus, scheduler.topology.machines[i].gpus)
        if take:
            parts.append((scheduler.free.names[i], take))
            gpus -= take
    return None if gpus else tuple(parts)


def _ready_s(scheduler: "JobScheduler", placement: Placement, now_s: float) -> float | None:
    """When everybody on these machines must be gone by their time limits; None if one has no limit."""
    machines = {name for name, _ in placement}
    ready_s = now_s
    for job in scheduler.running.values():
        if any(name in machines for name, _ in job.placement):
            if job.job.limit_s is None:
                return None
            ready_s = max(ready_s, job.since_s + job.job.limit_s)
    return ready_s


# -- Jobs that change their number of GPUs: a running one is stopped and goes on with more or fewer.


def resize(scheduler: "JobScheduler", now_s: float) -> None:
    """Give every job the number of GPUs that the policy now thinks best; 0 lets it wait."""
    waiting = scheduler.waiting.jobs()
    running = [job for job in scheduler.running.values() if job.phase == RUNNING]
    jobs = [*waiting, *running]
    sizes = scheduler.policy.sizes(jobs, _capacity(scheduler), now_s)
    for job, gpus in zip(jobs, sizes, strict=True):
        if job.phase == WAITING:
            _wait_for(scheduler, job, gpus or job.sizes[0][0], now_s)
        elif gpus != job.gpus:
            scheduler.stop(job, f"goes on with {gpus} GPUs" if gpus else "lets others run")
            scheduler.next_gpus[job.id] = gpus or job.sizes[0][0]


def _capacity(scheduler: "JobScheduler") -> int:
    """GPUs that are up, without those that jobs will take which are being stopped."""
    held = sum(job.gpus for job in scheduler.running.values())
    return max(0, scheduler.free.total + held - sum(scheduler.next_gpus.values()))


def _wait_for(scheduler: "JobScheduler", job: JobState, gpus: int, now_s: float) -> None:
    """Let a waiting job wait for this number of GPUs, in the order that the policy now gives it."""
    if gpus != job.gpus or job.key != scheduler.policy.key(job, now_s):
        scheduler.waiting.leave(job)
        if gpus != job.gpus:
            scheduler.fit(job, gpus)
        scheduler.wait(job, now_s)


# -- Why a job waits, in words a user can act on.


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


def explain(scheduler: "JobScheduler", job_id: str, now_s: float) -> Explanation:
    """Say why a job waits, or where it runs."""
    job = scheduler.jobs.get(job_id)
    if job is None:
        raise UnknownNameError("job", job_id, sorted(scheduler.jobs)[:8] or ["none wait or run"])
    if job.phase >= RUNNING:
        where = ", ".join(f"{name}×{gpus}" for name, gpus in job.placement)
        stopping = ", being stopped" if job.phase == STOPPING else ""
        return Explanation(
            job_id=job.id,
            state=PHASES[job.phase],
            gpus=job.gpus,
            waited_s=job.waited_s,
            reason=f"runs on {where} ({job.tier.name.lower()} tier){stopping}",
        )
    nearest = _nearest(scheduler, job)
    timer_s, next_tier = _timer(job)
    return Explanation(
        job_id=job.id,
        state=PHASES[job.phase],
        gpus=job.gpus,
        waited_s=job.waited_s + now_s - job.since_s,
        queue_position=_position(scheduler, job),
        allowed_tier=job.allowed,
        next_tier=next_tier,
        timer_left_s=None if timer_s is None or job.clock_s is None else job.clock_s + timer_s - now_s,
        declined_offers=job.declined + (job.group.declines if job.group else 0),
        nearest=nearest,
        victims_considered=job.victims_considered,
        reason=_reason(scheduler, job, nearest),
    )


def _timer(job: JobState) -> tuple[float | None, Tier | None]:
    """The timer the job is waiting on, and the tier it opens."""
    if job.allowed == Tier.NETWORK:
        return None, None
    timer_s = job.timers[0 if job.allowed == Tier.MACHINE else 1]
    if timer_s == float("inf"):
        return None, None
    return timer_s, Tier(job.allowed + 1)


def _position(scheduler: "JobScheduler", job: JobState) -> int | None:
    if job.phase != WAITING:
        return None
    return 1 + scheduler.waiting.jobs().index(job)


def _nearest(scheduler: "JobScheduler", job: JobState) -> Domain:
    """The domain of the allowed tier that lacks the fewest GPUs."""
    free, topology = scheduler.free, scheduler.topology
    if job.allowed == Tier.MACHINE:
        machines = topology.machines
        best = max(range(len(machines)), key=lambda i: (machines[i].gpus >= job.gpus, free.by_machine[i], -i))
        name, have = machines[best].name, free.by_machine[best]
    elif job.allowed == Tier.RACK:
        best = max(range(len(topology.racks)), key=lambda r: (free.by_rack[r], -r))
        name, have = topology.racks[best], free.by_rack[best]
    else:
        name, have = topology.name, free.total
    return Domain(tier=job.allowed, name=name, free_gpus=have, missing_gpus=max(0, job.gpus - have))


def _reason(scheduler: "JobScheduler", job: JobState, nearest: Domain) -> str:
    tenant, quota = job.job.tenant, scheduler.quotas.get(job.job.tenant)
    if job.phase == CLAIMING:
        claim = scheduler.claims.open[job.id]
        return f"GPUs are being cleared for it: {claim.missing_total} of {job.gpus} still missing"
    if quota is not None and scheduler.tenant_gpus[tenant] + job.gpus > quota:
        return f"tenant '{tenant}' uses {scheduler.tenant_gpus[tenant]} of its quota of {quota} GPUs"
    if scheduler.free.total < job.gpus:
        return f"{job.gpus} GPUs asked for, {scheduler.free.total} free in the whole cluster"
    if scheduler.policy.blocking and not nearest.missing_gpus:
        return "an earlier job is first in line"
    return (
        f"{scheduler.free.total} GPUs are free but spread too far: it holds out for one "
        f"{job.allowed.name.lower()} and the nearest lacks {nearest.missing_gpus}"
    )


RACK: Final = Tier.RACK

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
