"""Themis-like: finish-time fairness. Whoever is treated worst compared with an own cluster goes first.

    rho = (time since arrival + ideal time left) / ideal time of the whole job

GPUs are leased: when a lease ends, a job that fares better than a waiting one may lose its GPUs.
"""

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy

LEASE_S = 1200.0
HYSTERESIS = 1.5


class Themis(Policy):
    """The largest finish-time ratio first, by leases."""

    preempts = True
    reorders = True
    knows_service = True
    min_run_s = LEASE_S

    def rho(self, job: JobState, now_s: float) -> float:
        """Finish-time ratio: 1 is a job that never waited."""
        return (now_s - job.submitted_s + job.remaining_s(now_s)) / max(job.job.service_s, 1.0)

    def key(self, job: JobState, now_s: float) -> Key:
        """Worst off first."""
        return (-self.rho(job, now_s),)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Take the GPUs of an expired lease from a job that fares much better."""
        return self.rho(waiting, now_s) > HYSTERESIS * self.rho(running, now_s)
