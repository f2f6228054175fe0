"""GPUs being cleared for gangs: some are held already, the others are taken as they come free.

A claim serves both preemption (its victims are leaving) and a reservation (whoever leaves first).
A short job may borrow held GPUs if it is sure to return them in time: that is backfill.
GPUs that come free go to the open claims first.
"""

from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.scheduling.free_gpus import FreeGpus
from slimsched.jobs.scheduling.job_state import JobState


class Claim:
    """The GPUs a gang will start on, and how many of them are still missing on each machine."""

    __slots__ = ("held", "job", "missing", "missing_total", "placement", "ready_s")

    def __init__(self, job: JobState, placement: Placement, *, ready_s: float | None = None) -> None:
        self.job = job
        self.placement = placement
        self.ready_s = ready_s
        self.held = dict.fromkeys((name for name, _ in placement), 0)
        self.missing = dict(placement)
        self.missing_total = sum(self.missing.values())

    def take(self, machine: str, free: int) -> int:
        """Hold what the claim misses of a machine with `free` GPUs; returns how many it took."""
        gpus = min(self.missing.get(machine, 0), free)
        if gpus:
            self.missing[machine] -= gpus
            self.held[machine] += gpus
            self.missing_total -= gpus
        return gpus

    def lend(self, machine: str, gpus: int) -> None:
        """Let go of held GPUs for a while; they are missed again."""
        self.held[machine] -= gpus
        self.missing[machine] += gpus
        self.missing_total += gpus

    def holding(self) -> Placement:
        """What is held now."""
        return tuple((name, gpus) for name, gpus in self.held.items() if gpus)


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

    def missing(self, freed: Placement) -> list[Claim]:
        """The claims that miss GPUs on one of these machines, in the order they were made."""
        if len(freed) == 1:
            name = freed[0][0]
            return [claim for claim in self.open.values() if claim.missing.get(name)]
        return [claim for claim in self.open.values() if any(claim.missing.get(name) for name, _ in freed)]

    def fill(self, claim: Claim, freed: Placement) -> None:
        """Hold what the claim misses on these machines and is free there."""
        free = self._free
        for name, _ in freed:
            if name in claim.missing:
                machine = free.index[name]
                gpus = claim.take(name, free.by_machine[machine])
                if gpus:
                    free.take_at([(machine, gpus)])

    def close(self, claim: Claim) -> None:
        """The claim's job starts on what it holds."""
        del self.open[claim.job.id]

    def dissolve(self, job: JobState, down: set[str]) -> None:
        """Give up a job's claim, if it has one, and what it holds on machines that are up."""
        claim = self.open.pop(job.id, None)
        if claim is not None:
            self._free.give(tuple(part for part in claim.holding() if part[0] not in down))
