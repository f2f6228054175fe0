"""Gandiva-like: start anywhere, share by time slices, and migrate to closer placements when there is room."""

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy

SLICE_S = 1800.0


class Gandiva(Policy):
    """Round robin in slices, best-fit packing, introspective migration."""

    preempts = True
    migrates = True
    quantum_s = 600.0
    min_run_s = SLICE_S

    def slices(self, job: JobState, now_s: float) -> int:
        """Full slices of time a job has had."""
        return int(job.run_s(now_s) // SLICE_S)

    def key(self, job: JobState, now_s: float) -> Key:
        """Fewest slices first, then arrival."""
        return (float(self.slices(job, now_s)), job.job.arrival_s)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Stop a job that has had its slice and more slices than the waiting one."""
        return self.slices(running, now_s) > waiting.key[0]

    def rank(self, running: JobState, now_s: float) -> float:
        """Whoever ran longest goes first."""
        return running.run_s(now_s)
