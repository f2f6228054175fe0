"""What a job scheduler asks for. A driver must carry out every one of these."""

from msgspec import Struct

from slimsched.jobs.domain.placement import Placement
from slimsched.kernel.wake import WakeAt


class StartJob(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Start this gang on these GPUs, which are free now; answer JobFinished one day, or StartFailed."""

    job_id: str
    placement: Placement


class PreemptJob(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Checkpoint and stop this gang; answer JobPreempted once its GPUs are free."""

    job_id: str
    reason: str = ""


Command = StartJob | PreemptJob | WakeAt
"""Of several WakeAt, a driver needs to keep the earliest only."""


class RefuseJob(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """This job can never run here: leave it alone, and say why."""

    job_id: str
    reason: str


LiveCommand = Command | RefuseJob
"""What a scheduler on a real cluster asks for; see `live.py`."""
