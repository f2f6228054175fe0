"""Delay timers: when a waiting job's next tier becomes allowed. One entry per job, level and epoch."""

from heapq import heappop, heappush

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.scheduling.job_state import JobState


class DelayTimers:
    """The timers of all jobs that have declined an offer; those of jobs that moved on are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, JobState, int]] = []

    def arm(self, job: JobState, now_s: float) -> None:
        """Arm the timer of the tier the job now holds out for."""
        assert job.clock_s is not None
        at_s = max(now_s, job.clock_s + job.timers[0 if job.allowed == Tier.MACHINE else 1])
        if at_s < float("inf"):
            heappush(self._heap, (at_s, job.seq, job, job.epoch))

    def next_s(self) -> float:
        """When the next timer runs out."""
        heap = self._heap
        while heap:
            at_s, _, job, epoch = heap[0]
            if job.epoch == epoch:
                return at_s
            heappop(heap)
        return float("inf")

    def due(self, now_s: float) -> list[JobState]:
        """The jobs whose timer has run out."""
        jobs: list[JobState] = []
        while self.next_s() <= now_s:
            jobs.append(heappop(self._heap)[2])
        return jobs
