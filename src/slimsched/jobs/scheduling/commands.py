"""What a job scheduler asks for. A driver must carry out every one of these."""

from msgspec import Struct

from slimsched.jobs.domain.placement import Placement


class StartJob(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Start this gang on these GPUs, which are free now; answer JobFinished one day, or StartFailed."""

    job_id: str
    placement: Placement


class PreemptJob(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Checkpoint and stop this gang; answer JobPreempted once its GPUs are free."""

    job_id: str
    reason: str = ""


class WakeAt(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Feed Wake at this time; only the earliest outstanding WakeAt needs to be kept."""

    at_s: float


Command = StartJob | PreemptJob | WakeAt
