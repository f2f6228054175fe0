"""SRTF and SRSF: shortest remaining time or service first, told how long jobs take (an oracle)."""

from typing import ClassVar

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy


class Srtf(Policy):
    """Shortest remaining time first, preemptive, placed wherever there is room."""

    preempts = True
    knows_service = True
    hysteresis: ClassVar[float] = 2.0
    """How many times as much a job must have left to do to be stopped for another."""

    def remaining(self, job: JobState, now_s: float) -> float:
        """What is left to do, in the measure the order goes by."""
        return job.remaining_s(now_s)

    def key(self, job: JobState, now_s: float) -> Key:
        """Least remaining first."""
        return (self.remaining(job, now_s),)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Stop a job that has much more left to do."""
        return self.remaining(running, now_s) > self.hysteresis * waiting.key[0]

    def rank(self, running: JobState, now_s: float) -> float:
        """The longest goes first."""
        return self.remaining(running, now_s)


class Srsf(Srtf):
    """Shortest remaining service (time × GPUs) first."""

    def remaining(self, job: JobState, now_s: float) -> float:
        """GPU-seconds left."""
        return job.gpus * job.remaining_s(now_s)
