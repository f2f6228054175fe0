"""Max-min fairness over GPU-time in rounds: what Gavel's policy of that name does with one kind of GPU.

Every round the GPUs go to the jobs that have had the least GPU-time, and a job that has had more than one
that waits makes room for it.
"""

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy

ROUND_S = 360.0


class MaxMin(Policy):
    """Least attained GPU-time first, in rounds; placed wherever there is room."""

    preempts = True
    rotates = True
    quantum_s = ROUND_S
    min_run_s = ROUND_S

    def attained(self, job: JobState, now_s: float) -> float:
        """GPU-seconds a job has held by now."""
        return job.gpus * job.run_s(now_s)

    def key(self, job: JobState, now_s: float) -> Key:
        """Least attained first, then arrival."""
        return (self.attained(job, now_s), job.job.arrival_s)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Stop a job that has had more."""
        return self.attained(running, now_s) > waiting.key[0]

    def rank(self, running: JobState, now_s: float) -> float:
        """Most attained goes first."""
        return self.attained(running, now_s)
