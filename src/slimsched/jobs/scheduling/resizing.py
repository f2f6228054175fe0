"""Jobs that change their number of GPUs: a running one is stopped and goes on with more or fewer."""

from typing import TYPE_CHECKING

from slimsched.jobs.scheduling.job_state import RUNNING, WAITING, JobState

if TYPE_CHECKING:
    from slimsched.jobs.scheduling.scheduler import JobScheduler


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
