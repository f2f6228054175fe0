"""LWF-κ: least workload first, told durations; gangs above κ GPUs never cross racks, to keep uplinks calm."""

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import FOREVER, Policy, Timers

KAPPA = 1


class Lwf(Policy):
    """Least GPU-seconds first without preemption; gangs stay within a rack."""

    knows_service = True

    def key(self, job: JobState, now_s: float) -> Key:
        """Least remaining GPU-seconds first."""
        return (job.gpus * job.remaining_s(now_s),)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Any machine of a rack will do at once; another rack never."""
        return (0.0, FOREVER) if job.gpus > KAPPA else (0.0, 0.0)
