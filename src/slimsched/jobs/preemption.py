"""Stopping running jobs: to make room for a waiting gang, or to move one closer together."""

from typing import TYPE_CHECKING

from slimsched.domain.placement import Tier
from slimsched.jobs.job_state import JobState, Phase

if TYPE_CHECKING:
    from slimsched.jobs.scheduler import JobScheduler


def make_room(scheduler: "JobScheduler", job: JobState, now_s: float) -> None:
    """Stop running jobs for a waiting one if it then fits at its allowed tier."""
    if scheduler.over_quota(job.job.tenant, job.gpus):
        return
    eviction = scheduler.evictable.find(job, now_s)
    if eviction is not None:
        for victim in eviction.victims:
            scheduler.stop(victim, f"makes room for job {job.id}")
        scheduler.claim(job, eviction.placement, now_s)


def migrate(scheduler: "JobScheduler", now_s: float) -> None:
    """Move running jobs closer together where free GPUs allow it and the policy thinks it pays."""
    for job in list(scheduler.spread.values()):
        if job.phase != Phase.RUNNING:
            continue
        placement = scheduler.free.find(job.gpus, Tier(job.tier - 1))
        if placement is None:
            continue
        if scheduler.policy.should_move(job, scheduler.topology.tier(placement), now_s):
            scheduler.stop(job, "moves to a closer placement")
            scheduler.claim(job, placement, now_s)
