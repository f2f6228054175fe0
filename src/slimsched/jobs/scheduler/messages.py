"""The events that a job scheduler is told, and the commands that it gives.

The simulator and the controller of a real Slurm feed the same events and carry out every command. Their names
are the tags in event logs: renaming one makes old logs unreadable.
"""

from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.jobs.domain import Job, Machine, Placement

# -- What a job scheduler asks for. A driver must carry out every one of these.


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
"""What a scheduler on a real cluster asks for."""


class JobSubmitted(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A job waits for GPUs; `served_s` is the ideal service it got in an earlier life, if any.

    `declined_since_s` is when it first declined an offer, if a restarted controller remembers that.
    """

    job: Job
    served_s: float = 0.0
    declined_since_s: float | None = None


class JobFoundRunning(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A job already runs here: fed once for each running job when a controller (re)starts.

    `since_s` is when this run began (now, if nobody knows) and `served_s` what it had got before.
    Of a job that was told to start it says that its GPUs are shared out otherwise, and nothing more.
    """

    job: Job
    placement: Placement
    served_s: float = 0.0
    since_s: float | None = None


class JobFinished(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A job has left for good (done, failed or cancelled), running or waiting; its GPUs are free.

    `served_s` is the ideal service it had in all, when the driver knows it (iterations done × ideal time).
    """

    job_id: str
    served_s: float | None = None


class JobPreempted(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A running job has stopped and its GPUs are free; it waits again with `served_s` ideal seconds done.

    The answer to PreemptJob, and equally the news that a job was thrown out by someone else.
    """

    job_id: str
    served_s: float


class StartFailed(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A StartJob could not be carried out; the job waits again and its GPUs are free."""

    job_id: str
    reason: str


class NodeDown(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A machine is lost or drained; the gangs on it get a PreemptJob, and JobPreempted is awaited."""

    machine: str


class NodeUp(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A machine is back, empty."""

    machine: str


Event = JobSubmitted | JobFoundRunning | JobFinished | JobPreempted | StartFailed | NodeDown | NodeUp | Wake


class Rebuilt(Struct, frozen=True, kw_only=True, tag=True):
    """A live controller starts afresh from what its engine says: these machines, and no job known yet."""

    machines: tuple[Machine, ...]
    reason: str


LiveEvent = Event | Rebuilt
"""What a scheduler on a real cluster is told."""
