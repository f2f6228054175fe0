"""GPUs being cleared for one gang: some are held already, the others are taken as they come free.

A claim serves both preemption (its victims are leaving) and a reservation (whoever leaves first).
A short job may borrow held GPUs if it is sure to return them in time: that is backfill.
"""

from slimsched.jobs.domain.placement import Placement
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
        """Hold up to so many GPUs of a machine; returns how many were taken."""
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
