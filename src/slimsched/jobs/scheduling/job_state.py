"""What a scheduler knows about one job; the only mutable thing policies look at."""

from typing import TYPE_CHECKING, Final

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.domain.training_model import Scaling
from slimsched.jobs.scheduling.sensitivity import Traits

if TYPE_CHECKING:
    from slimsched.jobs.scheduling.waiting import Group

Key = tuple[float, ...]
"""Waiting jobs are served in ascending order of their keys."""


WAITING: Final = 0
CLAIMING: Final = 1
RUNNING: Final = 2
STOPPING: Final = 3
"""Phases: where a job stands. Plain numbers, because they are compared at every event.

WAITING → RUNNING → gone, and back: RUNNING → STOPPING (told to stop) → WAITING.
WAITING → CLAIMING (GPUs are being cleared for it) → RUNNING, or back to WAITING.
"""
PHASES = ("waiting", "claiming", "running", "stopping")


class JobState:
    """One job's standing: its attained service, its delay timers, its placement.

    `served_s` is ideal service at the last change of phase; `service_s(now)` adds the present run,
    at the slowdown its tier has with the network to itself. `clock_s` is when the job first declined.
    `slow_here` is the slowdown at the tier where it runs. `ripeness` counts the classes of waiting jobs for
    which it may be stopped. `spots` are machines by number, and the GPUs it holds or last held there.
    `sizes` are the numbers of GPUs it may have, under policies that resize jobs; `gpus` is then what it has
    or waits for, and `slow` counts against the pace on the GPUs it asked for.
    """

    __slots__ = (
        "allowed",
        "clock_s",
        "declined",
        "epoch",
        "estimate_s",
        "floor",
        "gpus",
        "group",
        "id",
        "job",
        "key",
        "network_duty",
        "phase",
        "placement",
        "preemptions",
        "ran_s",
        "ripeness",
        "seq",
        "served_s",
        "since_s",
        "sizes",
        "slow",
        "slow_here",
        "spots",
        "submitted_s",
        "tier",
        "timers",
        "victims_considered",
        "waited_s",
    )

    def __init__(self, job: Job, seq: int, floor: Tier, traits: Traits, now_s: float) -> None:
        self.job = job
        self.id = job.id
        self.gpus = job.gpus
        self.seq = seq
        self.floor = floor
        self.slow = traits.slow
        self.network_duty = traits.network_duty
        self.phase: int = WAITING
        self.submitted_s = now_s
        self.since_s = now_s
        self.served_s = 0.0
        self.estimate_s = 0.0
        self.waited_s = 0.0
        self.ran_s = 0.0
        self.key: Key = ()
        self.timers = (0.0, 0.0)
        self.allowed = floor
        self.clock_s: float | None = None
        self.declined = 0
        self.epoch = 0
        self.group: Group | None = None
        self.placement: Placement = ()
        self.spots: list[tuple[int, int]] = []
        self.tier = floor
        self.slow_here = 1.0
        self.ripeness = 0
        self.preemptions = 0
        self.sizes: Scaling = ()
        self.victims_considered: tuple[str, ...] = ()

    def service_s(self, now_s: float) -> float:
        """Ideal service attained by now."""
        if self.phase < RUNNING:
            return self.served_s
        return self.served_s + (now_s - self.since_s) / self.slow_here

    def run_s(self, now_s: float) -> float:
        """Time it has held GPUs by now."""
        return self.ran_s + now_s - self.since_s if self.phase >= RUNNING else self.ran_s

    def remaining_s(self, now_s: float) -> float:
        """Ideal service left, for policies that are told durations."""
        return max(0.0, self.job.service_s - self.service_s(now_s))

    @property
    def sensitivity(self) -> float:
        """How much slower the job runs across the network than at its floor."""
        return self.slow[Tier.NETWORK]
