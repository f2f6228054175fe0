"""Backfill: arrival order, but a job may pass others if by everybody's time limit it delays none of them.

What Slurm's sched/backfill does between its strict passes: every `interval_s`, the first 500 waiting jobs
are planned in order on the machines that time limits say will be free (`planned.py`). A job planned for now
starts. A job without a limit counts as one that never ends. `resolution_s` is Slurm's bf_resolution.
"""

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.scheduling.job_state import JobState
from slimsched.jobs.scheduling.policy import Policy
from slimsched.kernel.quantity import PositiveSeconds


class Backfill(Policy):
    """First come, first served, with backfill by time limits; placed wherever there is room."""

    blocking = True
    obeys = True
    backfills = True

    def __init__(self, *, interval_s: PositiveSeconds = 30.0, resolution_s: PositiveSeconds = 60.0) -> None:
        self.quantum_s = interval_s  # type: ignore[misc]
        self.resolution_s = resolution_s  # type: ignore[misc]
        self._changed = True

    def worth_planning(self) -> bool:
        """Whether anything has changed since the last plan."""
        changed, self._changed = self._changed, False
        return changed

    def admit(self, job: JobState, now_s: float) -> None:
        """A new job may fit into a gap."""
        self._changed = True

    def left(self, job: JobState, tier: Tier, run_s: float, served_s: float | None) -> None:
        """A job that ended leaves a gap."""
        self._changed = True
