"""What a change seen in Slurm means, as a table: (where we think a job is, what Slurm says) → step."""

from enum import Enum

from slimsched.jobs.execution.slurm.job import Status


class Stage(Enum):
    """Where we think a job of ours is."""

    WAITING = "waiting"
    STARTING = "starting"  # placed and released; Slurm has not started it yet
    RUNNING = "running"
    STOPPING = "stopping"  # told to stop; Slurm has not requeued it yet


class Step(Enum):
    """What to tell the scheduler, or to do about it."""

    NOTHING = "as expected"
    CHECK = "it runs: see whether it runs where we wanted"
    LATE = "released but not running: be patient for a while, then take it back"
    START_FAILED = "released but held again"
    PREEMPTED = "it has stopped and waits again"
    REBUILD = "somebody else released it: start afresh from what Slurm says"


STEPS: dict[tuple[Stage, Status], Step] = {
    (Stage.WAITING, Status.HELD): Step.NOTHING,
    (Stage.WAITING, Status.QUEUED): Step.REBUILD,
    (Stage.WAITING, Status.RUNNING): Step.REBUILD,
    (Stage.WAITING, Status.ENDING): Step.REBUILD,
    (Stage.STARTING, Status.HELD): Step.START_FAILED,
    (Stage.STARTING, Status.QUEUED): Step.LATE,
    (Stage.STARTING, Status.RUNNING): Step.CHECK,
    (Stage.STARTING, Status.ENDING): Step.NOTHING,
    (Stage.RUNNING, Status.HELD): Step.PREEMPTED,
    (Stage.RUNNING, Status.QUEUED): Step.PREEMPTED,
    (Stage.RUNNING, Status.RUNNING): Step.CHECK,
    (Stage.RUNNING, Status.ENDING): Step.NOTHING,
    (Stage.STOPPING, Status.HELD): Step.PREEMPTED,
    (Stage.STOPPING, Status.QUEUED): Step.PREEMPTED,
    (Stage.STOPPING, Status.RUNNING): Step.NOTHING,
    (Stage.STOPPING, Status.ENDING): Step.NOTHING,
}
"""A job that is gone for good has no entry: it is finished from wherever it was."""
