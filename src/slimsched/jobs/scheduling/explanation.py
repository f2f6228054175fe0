"""Why a job waits, in words a user can act on."""

from typing import TYPE_CHECKING

from msgspec import Struct

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.scheduling.job_state import CLAIMING, PHASES, RUNNING, STOPPING, WAITING, JobState
from slimsched.kernel.errors import UnknownNameError

if TYPE_CHECKING:
    from slimsched.jobs.scheduling.scheduler import JobScheduler


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
