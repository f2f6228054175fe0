"""Auto-tuners: how long a job should hold out for its machine, and for its rack.

Each is told how long jobs held out and whether they got what they waited for, what their runs at each tier
brought, and what finished jobs took in all.
"""

from collections import deque
from typing import Final

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.scheduling.job_state import JobState
from slimsched.jobs.scheduling.policy import FOREVER, Timers
from slimsched.jobs.scheduling.service_history import ServiceHistory


class Tuner:
    """Never wait, learn nothing; others override what they do differently."""

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr: seconds from the first declined offer until the rack, then the network, will do.

        `backlog` is how many jobs wait for each GPU; `uplink_gpus` the GPUs of gangs that cross racks now or
        can run in no other way, each weighted with the share of its time it communicates.
        """
        return (0.0, 0.0)

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


class FixedTimers(Tuner):
    """The same timers for everybody: the manual setting, and with 0 and ∞ the two extremes."""

    def __init__(self, rack_s: float = FOREVER, network_s: float = FOREVER) -> None:
        self._timers = (rack_s, network_s)

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr as set by hand."""
        return self._timers


class MeanTuner(Tuner):
    """Plain mean of the waits that ended in acceptance, by demand and tier: kept for the ablation.

    Tm = clamp(α · mean), Tr = Tm + clamp(α · mean); nearest demand with history, then the default.
    """

    def __init__(self, *, alpha: float = 1.5, length: int = 64, default_s: float = 600.0) -> None:
        self._alpha = alpha
        self._length = length
        self._default_s = default_s
        self._waits: tuple[dict[int, deque[float]], ...] = ({}, {})

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr from the mean accepted wait."""
        rack_s = self._mean_s(Tier.MACHINE, job.gpus)
        return (rack_s, rack_s + self._mean_s(Tier.RACK, job.gpus))

    def _mean_s(self, tier: Tier, gpus: int) -> float:
        known = self._waits[tier]
        if not known:
            return self._default_s
        waits = known[min(known, key=lambda demand: (abs(demand - gpus), demand))]
        return min(86400.0, max(1.0, self._alpha * sum(waits) / len(waits)))

    def held_out(self, job: JobState, tier: Tier, seconds: float, *, accepted: bool) -> None:
        """Remember a wait that ended in acceptance."""
        if accepted and tier < Tier.NETWORK:
            self._waits[tier].setdefault(job.gpus, deque(maxlen=self._length)).append(seconds)


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

    def __init__(self, *, backlog_weight: float = 4.0, harm_weight: float = 1.0, learns: bool = True) -> None:
        self._backlog_weight = backlog_weight
        self._harm_weight = harm_weight
        self._learns = learns
        self._services = ServiceHistory()
        self._lost_s = [0.0, 0.0, 0.0]
        self._predicted_s = [0.0, 0.0, 0.0]
        self._inflation = [1.0, 1.0, 1.0]
        """Time that runs at a tier lost, over what the slowdowns predicted."""

    def timers(self, job: JobState, backlog: float, uplink_gpus: float) -> Timers:
        """Tm and Tr from what the next tier would cost."""
        machine, rack, network = job.slow
        in_machine, in_rack, across = self._inflation
        machine = 1.0 + (machine - 1.0) * in_machine
        rack = 1.0 + (rack - 1.0) * in_rack
        network = 1.0 + (network - 1.0) * across
        harm = self._harm_weight * network * job.network_duty * uplink_gpus / job.gpus
        stake_s = self._services.residual_s(job.served_s)
        stake_s *= 1.0 + self._backlog_weight * job.gpus * backlog
        rack_s = _at_least_a_second((rack - machine) * stake_s)
        return (rack_s, rack_s + _at_least_a_second((network - rack + harm) * stake_s))

    def slowdown(self, job: JobState, tier: Tier) -> float:
        """The slowdown with the network to itself, its excess scaled by experience."""
        return 1.0 + (job.slow[tier] - 1.0) * self._inflation[tier]

    def ran(self, job: JobState, tier: Tier, run_s: float, served_s: float) -> None:
        """Compare what a run lost with the prediction; no run counts for more than an hour."""
        if self._learns and job.slow[tier] > 1.02 and served_s > 30.0:
            weight = min(served_s, 3600.0) / served_s
            lost_s = max(0.0, run_s - CHECKPOINT_S - served_s)
            self._lost_s[tier] = FORGETTING * self._lost_s[tier] + weight * lost_s
            predicted_s = FORGETTING * self._predicted_s[tier] + weight * (job.slow[tier] - 1.0) * served_s
            self._predicted_s[tier] = predicted_s
            if predicted_s >= 60.0:
                self._inflation[tier] = max(1.0, self._lost_s[tier] / predicted_s)
            else:
                self._inflation[tier] = 1.0

    def finished(self, service_s: float) -> None:
        """Remember what a job took."""
        self._services.add(service_s)

    def residual_s(self, served_s: float) -> float:
        """From finished jobs that lasted as long."""
        return self._services.residual_s(served_s)


CHECKPOINT_S: Final = 60.0
"""Time of a run that is not work: restoring and saving."""
FORGETTING: Final = 0.97


def _at_least_a_second(seconds: float) -> float:
    return seconds if seconds >= 1.0 else 0.0
