"""Policies that choose the number of GPUs of all jobs anew in rounds."""

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.knapsack import Options, cheapest_sizes
from slimsched.jobs.scheduling.policy import Policy


class RoundPolicy(Policy):
    """Each minute the cheapest sizes; jobs that got GPUs go first, then in order of arrival."""

    resizes = True
    quantum_s = 60.0

    def __init__(self) -> None:
        self._chosen: set[str] = set()

    def key(self, job: JobState, now_s: float) -> Key:
        """Those that this round gave GPUs go first."""
        return (job.id not in self._chosen, job.job.arrival_s)

    def sizes(self, jobs: list[JobState], gpus: int, now_s: float) -> list[int]:
        """Solve the program of this round."""
        sizes = cheapest_sizes([self.options(job, now_s) for job in jobs], gpus)
        self._chosen = {job.id for job, size in zip(jobs, sizes, strict=True) if size}
        return sizes

    def options(self, job: JobState, now_s: float) -> Options:
        """Sizes a job may have now, 0 included, and what each costs."""
        raise NotImplementedError
