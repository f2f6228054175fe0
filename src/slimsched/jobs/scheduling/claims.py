"""The open claims: GPUs that come free go to them first."""

from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.scheduling.claim import Claim
from slimsched.jobs.scheduling.free_gpus import FreeGpus
from slimsched.jobs.scheduling.job_state import JobState


class Claims:
    """Claims by job, drawing on the free GPUs."""

    def __init__(self, free: FreeGpus) -> None:
        self._free = free
        self.open: dict[str, Claim] = {}

    def add(self, job: JobState, placement: Placement, *, ready_s: float | None = None) -> Claim:
        """Open a claim and hold what is free of it."""
        claim = self.open[job.id] = Claim(job, placement, ready_s=ready_s)
        self.fill(claim, placement)
        return claim

    def fill(self, claim: Claim, freed: Placement) -> None:
        """Hold what the claim misses on these machines and is free there."""
        free = self._free
        for name, _ in freed:
            if name in claim.missing:
                gpus = claim.take(name, free.by_machine[free.index[name]])
                if gpus:
                    free.take(((name, gpus),))

    def close(self, claim: Claim) -> None:
        """The claim's job starts on what it holds."""
        del self.open[claim.job.id]

    def dissolve(self, job: JobState, down: set[str]) -> None:
        """Give up a job's claim, if it has one, and what it holds on machines that are up."""
        claim = self.open.pop(job.id, None)
        if claim is not None:
            self._free.give(tuple(part for part in claim.holding() if part[0] not in down))
