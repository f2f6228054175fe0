"""Reservations with backfill: a gang that starves behind smaller ones gets GPUs set aside as they come free.

Where everybody on those machines has a time limit it is known when they will all be free at the latest;
until then, waiting jobs whose own limit ends earlier may borrow what is held already.
"""

from math import inf
from typing import TYPE_CHECKING

from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.scheduling.job_state import CLAIMING, JobState
from slimsched.jobs.scheduling.planned import Plan

if TYPE_CHECKING:
    from slimsched.jobs.scheduling.scheduler import JobScheduler

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
    plan = Plan(now_s, free, _ends(scheduler), scheduler.policy.resolution_s)
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
