"""Stopping running jobs: to make room for a waiting gang, or to move one closer together."""

from typing import TYPE_CHECKING

from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.scheduling.job_state import RUNNING, JobState

if TYPE_CHECKING:
    from slimsched.jobs.scheduling.scheduler import JobScheduler


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
