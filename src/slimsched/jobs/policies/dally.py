"""Dally: delay scheduling by tiers, self-tuned timers, network-sensitive preemption and migration.

Ours, after the abstract of Dally (Sharma et al., arXiv 2401.16492): its formulas were not read. Not told
durations.
Order: levels of attained ideal GPU-service; at the same level the smallest gang first, then the one that
suffers most from the network. Half a day of waiting lifts a job by one level, and less when few GPUs are
waited for: so that wide, long gangs do not end up last, alone on an empty cluster. Gangs that must cross
racks keep away from each other's uplinks.

The timers say how long a job holds out for GPUs of one machine, and then of one rack. Tuners learn them from
the waits that jobs accepted.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from typing import ClassVar, Final

from slimsched.core.statistics import Fading
from slimsched.jobs.domain import Tier, Topology
from slimsched.jobs.scheduler.policy import Policy, Timers
from slimsched.jobs.scheduler.waiting import JobState, Key

# -- What finished jobs took, to guess what is left of a job that has had some service already.

FIRST_S: Final = 1.0
GROWTH: Final = 1.25
CLASSES: Final = 64
DEFAULT_S: Final = 3600.0
ENOUGH: Final = 8.0
HISTORY_FORGETTING: Final = 0.9995


class ServiceHistory:
    """A histogram of service times in geometric classes, older jobs fading away."""

    def __init__(self) -> None:
        self._bounds_s = [FIRST_S * GROWTH**i for i in range(CLASSES)]
        self._counts = [0.0] * (CLASSES + 1)
        self._sums_s = [0.0] * (CLASSES + 1)
        self._weight = 1.0
        self._residual_s: list[float | None] = [None] * (CLASSES + 1)
        self._stale = 0

    def add(self, service_s: float) -> None:
        """Remember a finished job; the weight of a new one grows instead of the old ones' shrinking."""
        self._weight /= HISTORY_FORGETTING
        i = bisect_left(self._bounds_s, service_s)
        self._counts[i] = self._counts[i] + self._weight
        self._sums_s[i] = self._sums_s[i] + self._weight * service_s
        self._stale += 1
        if self._stale >= 16:
            self._stale = 0
            self._residual_s = [None] * (CLASSES + 1)
            if self._weight > 1e6:
                self._counts = [count / self._weight for count in self._counts]
                self._sums_s = [total / self._weight for total in self._sums_s]
                self._weight = 1.0

    def residual_s(self, served_s: float) -> float:
        """Return the mean service still to come for a job that has had `served_s`."""
        i = bisect_left(self._bounds_s, served_s)
        mean_s = self._residual_s[i]
        if mean_s is None:
            count = sum(self._counts[i:])
            mean_s = -1.0 if count < ENOUGH * self._weight else sum(self._sums_s[i:]) / count
            self._residual_s[i] = mean_s
        if mean_s < 0.0:
            return max(served_s, DEFAULT_S)
        return max(mean_s - served_s, FIRST_S)


# -- Auto-tuners: how long a job should hold out for its machine, and for its rack.
#
# Each is told how long jobs held out and whether they got what they waited for, what their runs at each tier
# brought, and what finished jobs took in all.


class Tuner:
    """The same timers for everybody, nothing learned; others override what they do differently."""

    def __init__(self, rack_s: float = 0.0, network_s: float = 0.0) -> None:
        self._timers = (rack_s, network_s)

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr: seconds from the first declined offer until the rack, then the network, will do.

        `backlog` is how many jobs wait for each GPU; `uplink_gpus` the GPUs of gangs that cross racks now or
        can run in no other way, each weighted with the share of its time it communicates.
        """
        return self._timers

    def held_out(self, job: JobState, tier: Tier, seconds: float, *, accepted: bool) -> None:
        """Learn how long a job held out for a tier, and whether it got it or gave up."""

    def ran(self, job: JobState, tier: Tier, run_s: float, served_s: float) -> None:
        """Learn how much ideal service a run at a tier brought."""

    def finished(self, service_s: float) -> None:
        """Learn how much ideal service a job needed in all."""

    def residual_s(self, served_s: float) -> float:
        """Return the ideal service that a job with `served_s` behind it can expect to need still."""
        return 3600.0

    def slowdown(self, job: JobState, tier: Tier) -> float:
        """How much slower a job runs at a tier, as far as known."""
        return job.slow[tier]


class MeanTuner(Tuner):
    """Plain mean of the waits that ended in acceptance, by demand and tier: kept for the ablation.

    Tm = clamp(α · mean), Tr = Tm + clamp(α · mean); nearest demand with history, then the default.
    """

    alpha: ClassVar[float] = 1.5
    length: ClassVar[int] = 64
    """Waits of a demand that count: the latest ones."""
    default_s: ClassVar[float] = 600.0

    def __init__(self) -> None:
        self._waits: tuple[dict[int, deque[float]], ...] = ({}, {})

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr from the mean accepted wait."""
        rack_s = self._mean_s(Tier.MACHINE, job.gpus)
        return (rack_s, rack_s + self._mean_s(Tier.RACK, job.gpus))

    def _mean_s(self, tier: Tier, gpus: int) -> float:
        known = self._waits[tier]
        if not known:
            return self.default_s
        waits = known[min(known, key=lambda demand: (abs(demand - gpus), demand))]
        return min(86400.0, max(1.0, self.alpha * sum(waits) / len(waits)))

    def held_out(self, job: JobState, tier: Tier, seconds: float, *, accepted: bool) -> None:
        """Remember a wait that ended in acceptance."""
        if accepted and tier < Tier.NETWORK:
            self._waits[tier].setdefault(job.gpus, deque(maxlen=self.length)).append(seconds)


BACKLOG_WEIGHT: Final = 4.0
"""β: how much more time is worth when others wait."""


class BenefitTuner(Tuner):
    """Hold out for a tier as long as the time lost by taking the next one (rent or buy).

        Tm      = (s_rack − s_machine) · R · (1 + β · g · backlog)
        Tr − Tm = (s_network − s_rack + s_network · d · U / g) · R · (1 + β · g · backlog)

    s: slowdown at a tier, its excess over 1 scaled by what runs at that tier were observed to lose (so that
    contention counts). R: mean service still to come, from finished jobs that lasted as long. g: GPUs.
    d: share of time the job communicates across racks; U: GPUs whose gangs need the uplinks: the harm done
    to them. backlog: jobs waiting for each GPU; every GPU-second wasted delays them all.
    Waiting exactly as long as the loss is at most twice as bad as knowing when the offer comes.
    """

    def __init__(self) -> None:
        self._services = ServiceHistory()
        self._losses = [Fading(share=FORGETTING) for _ in Tier]  # seconds lost over seconds predicted
        self._inflation = [1.0, 1.0, 1.0]
        """Time that runs at a tier lost, over what the slowdowns predicted."""

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr from what the next tier would cost."""
        machine, rack, network = job.slow
        in_machine, in_rack, across = self._inflation
        machine = 1.0 + (machine - 1.0) * in_machine
        rack = 1.0 + (rack - 1.0) * in_rack
        network = 1.0 + (network - 1.0) * across
        harm = network * job.network_duty * uplink_gpus / job.gpus
        stake_s = self._services.residual_s(job.served_s)
        stake_s *= 1.0 + BACKLOG_WEIGHT * job.gpus * backlog
        rack_s = _at_least_a_second((rack - machine) * stake_s)
        return (rack_s, rack_s + _at_least_a_second((network - rack + harm) * stake_s))

    def slowdown(self, job: JobState, tier: Tier) -> float:
        """The slowdown with the network to itself, its excess scaled by experience."""
        return 1.0 + (job.slow[tier] - 1.0) * self._inflation[tier]

    def ran(self, job: JobState, tier: Tier, run_s: float, served_s: float) -> None:
        """Compare what a run lost with the prediction; no run counts for more than an hour."""
        if job.slow[tier] > 1.02 and served_s > 30.0:
            weight = min(served_s, 3600.0) / served_s
            lost_s, losses = max(0.0, run_s - CHECKPOINT_S - served_s), self._losses[tier]
            losses.note(weight * lost_s, weight * (job.slow[tier] - 1.0) * served_s)
            self._inflation[tier] = max(1.0, losses.mean) if losses.weight >= 60.0 else 1.0

    def finished(self, service_s: float) -> None:
        """Remember what a job took."""
        self._services.add(service_s)

    def residual_s(self, served_s: float) -> float:
        """From finished jobs that lasted as long."""
        return self._services.residual_s(served_s)


CHECKPOINT_S: Final = 60.0
"""Time of a run that is not work: restoring and saving."""
FORGETTING: Final = 0.03
"""What the last run at a tier counts."""


def _at_least_a_second(seconds: float) -> float:
    return seconds if seconds >= 1.0 else 0.0


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
