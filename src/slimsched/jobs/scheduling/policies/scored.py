"""An order given by a score of features: the place of a learned orderer.

The score is a function of what a scheduler may know about a waiting job; lower runs first. The default is a
linear score set by hand; a trained one takes its place as `Scored(score=...)`.
"""

from collections.abc import Callable

from msgspec import Struct

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy, Timers
from slimsched.jobs.scheduling.tuner import BenefitTuner


class Features(Struct, frozen=True, kw_only=True, gc=False):
    """What a learned orderer sees of one waiting job."""

    gpus: int
    attained_gpu_s: float
    waited_s: float
    sensitivity: float
    preemptions: int


Score = Callable[[Features], float]


def by_hand(features: Features) -> float:
    """Attained service and size count against a job, an hour of waiting for it."""
    attained_h = features.attained_gpu_s / 3600.0
    return attained_h + 0.05 * features.gpus - features.waited_s / 3600.0 - 0.1 * features.sensitivity


class Scored(Policy):
    """Lowest score first; waits for locality as dally does, without preemption."""

    reorders = True

    def __init__(self, score: Score = by_hand) -> None:
        self._score = score
        self._tuner = BenefitTuner()

    def key(self, job: JobState, now_s: float) -> Key:
        """The score."""
        return (
            self._score(
                Features(
                    gpus=job.gpus,
                    attained_gpu_s=job.gpus * job.served_s,
                    waited_s=now_s - job.since_s,
                    sensitivity=job.sensitivity,
                    preemptions=job.preemptions,
                )
            ),
        )

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """The benefit tuner's."""
        return self._tuner.timers(job, backlog, 0.0)

    def finished(self, job: JobState, service_s: float) -> None:
        """Tell the tuner how long the job was."""
        self._tuner.finished(service_s)
