"""Dally: delay scheduling by tiers, self-tuned timers, network-sensitive preemption and migration.

Ours, after the idea of Dally (arXiv 2401.16492), whose formulas are not public. Not told durations.
Order: levels of attained ideal GPU-service; at the same level the smallest gang first, then the one that
suffers most from the network. Half a day of waiting lifts a job by one level, and less when few GPUs are
waited for: so that wide, long gangs do not end up last, alone on an empty cluster. Gangs that must cross
racks keep away from each other's uplinks.
"""

from bisect import bisect_right
from typing import Final

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy, Timers
from slimsched.jobs.scheduling.tuner import BenefitTuner, Tuner

NETWORK: Final = Tier.NETWORK
LEVELS_GPU_S: Final = [3600.0 * 4.0**i for i in range(12)]
HIGHEST: Final = 11
LIFT_AFTER_S: Final = 43200.0
LEAST_DEMAND: Final = 0.02
MOVE_COST_S: Final = 60.0
MOVE_MARGIN: Final = 2.0


class Dally(Policy):
    """Waits for locality as long as it pays, preempts topology first, moves gangs closer when it pays."""

    preempts = True
    migrates = True
    calm = True
    reorders = True
    quantum_s = 600.0
    reorder_s = 3600.0
    eviction_classes = len(LEVELS_GPU_S)
    reserve_after_s = 3 * 86400.0

    def __init__(self, tuner: Tuner | None = None) -> None:
        self.tuner = tuner or BenefitTuner()
        self._uplink_gpus = 0.0
        self._on_uplinks: dict[str, float] = {}
        self._gpus = 1
        self._waiting_gpus = 0

    def begin(self, topology: Topology) -> None:
        """Forget the jobs of before, and measure waiting demand by this cluster's size."""
        self._gpus = topology.gpus
        self._uplink_gpus = 0.0
        self._on_uplinks.clear()
        self._waiting_gpus = 0

    def admit(self, job: JobState, now_s: float) -> None:
        """A gang that fits no rack will need the uplinks."""
        self._waiting_gpus += job.gpus
        if job.floor == NETWORK:
            self._add_uplink(job)

    def key(self, job: JobState, now_s: float) -> Key:
        """By level, size, sensitivity and arrival."""
        level = min(bisect_right(LEVELS_GPU_S, job.gpus * job.served_s), HIGHEST)
        if level:
            demand = min(1.0, max(LEAST_DEMAND, self._waiting_gpus / self._gpus))
            level = max(0, level - int((now_s - job.since_s) / (LIFT_AFTER_S * demand)))
        return (level, job.gpus, -job.slow[NETWORK], job.job.arrival_s)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """The tuner's."""
        return self.tuner.timers(job, backlog, self._uplink_gpus)

    def eviction_class(self, waiting: JobState) -> int:
        """By level: whoever waits at a level may stop jobs of higher levels."""
        return int(waiting.key[0])

    def evictable_at_s(self, job: JobState, for_class: int, now_s: float) -> float:
        """When the job will have left that level, and not before it has run for a while."""
        left_s = job.since_s + (LEVELS_GPU_S[for_class] / job.gpus - job.served_s) * job.slow_here
        return max(job.since_s + self.min_run_s, left_s)

    def rank(self, running: JobState, now_s: float) -> float:
        """Most attained service goes first."""
        return running.gpus * running.service_s(now_s)

    def should_move(self, job: JobState, to: Tier, now_s: float) -> bool:
        """Move when the time saved outweighs the checkpoint."""
        if to >= job.tier or now_s - job.since_s < self.min_run_s:
            return False
        gain = self.tuner.slowdown(job, job.tier) / self.tuner.slowdown(job, to) - 1.0
        return gain * self.tuner.residual_s(job.service_s(now_s)) > MOVE_MARGIN * MOVE_COST_S

    def should_separate(self, job: JobState, others: int, now_s: float) -> bool:
        """Move when the waiting for each other outweighs the checkpoint."""
        if now_s - job.since_s < self.min_run_s:
            return False
        gain_s = job.network_duty * others * self.tuner.residual_s(job.service_s(now_s))
        return gain_s > MOVE_MARGIN * MOVE_COST_S

    def launched(self, job: JobState, tier: Tier, declined_for_s: float, now_s: float) -> None:
        """Tell the tuner what waiting brought."""
        self._waiting_gpus -= job.gpus
        if tier == NETWORK:
            self._add_uplink(job)
        if job.slow[NETWORK] > 1.01:
            self.tuner.held_out(job, tier, declined_for_s, accepted=True)

    def widened(self, job: JobState, tier: Tier, declined_for_s: float) -> None:
        """Tell the tuner that waiting was in vain."""
        self.tuner.held_out(job, tier, declined_for_s, accepted=False)

    def left(self, job: JobState, tier: Tier, run_s: float, served_s: float | None) -> None:
        """Tell the tuner what the run brought."""
        self._waiting_gpus += job.gpus
        if tier == NETWORK and job.floor < NETWORK:
            self._drop_uplink(job)
        if served_s is not None:
            self.tuner.ran(job, tier, run_s, served_s)

    def finished(self, job: JobState, service_s: float) -> None:
        """Tell the tuner how long the job was."""
        self._waiting_gpus -= job.gpus
        if job.floor == NETWORK:
            self._drop_uplink(job)
        self.tuner.finished(service_s)

    def dropped(self, job: JobState) -> None:
        """A waiting job asks for nothing any more."""
        self._waiting_gpus -= job.gpus
        self._drop_uplink(job)

    def _add_uplink(self, job: JobState) -> None:
        if job.id not in self._on_uplinks:
            weight = job.gpus * job.network_duty
            self._on_uplinks[job.id] = weight
            self._uplink_gpus += weight

    def _drop_uplink(self, job: JobState) -> None:
        self._uplink_gpus = max(0.0, self._uplink_gpus - self._on_uplinks.pop(job.id, 0.0))
