"""The classical policies of job scheduling, from arrival order to fairness, each in a class of its own.

A policy says what the scheduler does differently: the order of waiting jobs, who waits for a close placement,
who may be stopped. Those named after a paper are our reading of it, on our machine.
"""

from bisect import bisect_right
from heapq import heappop, heappush
from typing import ClassVar

from slimsched.core.config import PositiveSeconds
from slimsched.jobs.domain import Tier, Topology
from slimsched.jobs.policies.dally import BenefitTuner
from slimsched.jobs.scheduler.policy import FOREVER, Policy, Timers
from slimsched.jobs.scheduler.waiting import JobState, Key

# -- An order given by a score of features, set by hand: what a learned order is compared with.


class Scored(Policy):
    """Lowest score first; waits for locality as dally does, without preemption."""

    reorders = True

    def __init__(self) -> None:
        self._tuner = BenefitTuner()

    def key(self, job: JobState, now_s: float) -> Key:
        """Attained service and size count against a job, an hour of waiting for it."""
        attained_h = job.gpus * job.served_s / 3600.0
        waited_h = (now_s - job.since_s) / 3600.0
        return (attained_h + 0.05 * job.gpus - waited_h - 0.1 * job.sensitivity,)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """The benefit tuner's."""
        return self._tuner.timers(job, backlog, 0.0)

    def finished(self, job: JobState, service_s: float) -> None:
        """Tell the tuner how long the job was."""
        self._tuner.finished(service_s)


# -- A-SRPT: shortest predicted remaining time first on a virtual single machine; real jobs follow its order.
#
# Durations are predicted from finished jobs of the same model and demand (their mean), then of the same
# demand, then of all. The virtual machine does the predicted GPU-seconds of all jobs, smallest remainder
# first; jobs it has finished go first, in the order it finished them, then the others by what is left.

DEFAULT_S = 3600.0
SENSITIVE = 1.5
PATIENCE = 0.5


class ASrpt(Policy):
    """Predicted shortest remaining processing time first, no preemption; sensitive gangs wait a while."""

    reorders = True

    def __init__(self) -> None:
        self._gpus = 1
        self._sums: dict[tuple[str, int], tuple[float, int]] = {}
        self._virtual: list[tuple[float, int, str]] = []
        self._virtual_s = 0.0
        self._done: dict[str, int] = {}
        self._finished = 0

    def begin(self, topology: Topology) -> None:
        """Forget the jobs of before; the virtual machine is as fast as all GPUs together."""
        self._gpus = topology.gpus
        self._virtual.clear()
        self._done.clear()

    def admit(self, job: JobState, now_s: float) -> None:
        """Let the virtual machine work until now, then give it the new job."""
        self._advance(now_s)
        sums = [self._sums[like] for like in _likes(job) if like in self._sums]
        job.estimate_s = sums[0][0] / sums[0][1] if sums else DEFAULT_S
        heappush(self._virtual, (job.estimate_s * job.gpus, job.seq, job.id))

    def key(self, job: JobState, now_s: float) -> Key:
        """The virtual machine's order."""
        self._advance(now_s)
        done = self._done.get(job.id)
        if done is not None:
            return (0.0, float(done))
        return (1.0, job.estimate_s * job.gpus)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Sensitive gangs wait for consolidation for a share of their predicted time."""
        patience_s = PATIENCE * job.estimate_s if job.sensitivity > SENSITIVE else 0.0
        return (patience_s, patience_s)

    def finished(self, job: JobState, service_s: float) -> None:
        """Learn from what the job needed."""
        for like in _likes(job):
            total_s, count = self._sums.get(like, (0.0, 0))
            self._sums[like] = (total_s + service_s, count + 1)
        self._done.pop(job.id, None)

    def _advance(self, now_s: float) -> None:
        work = (now_s - self._virtual_s) * self._gpus
        self._virtual_s = now_s
        virtual = self._virtual
        while virtual and work > 0.0:
            left, seq, job_id = heappop(virtual)
            if left > work:
                heappush(virtual, (left - work, seq, job_id))
                return
            work -= left
            self._done[job_id] = self._finished
            self._finished += 1


def _likes(job: JobState) -> tuple[tuple[str, int], ...]:
    """The groups of jobs by which this one is predicted, the closest first."""
    return ((job.job.model, job.gpus), ("", job.gpus), ("", 0))


# -- Whoever has the least of something goes first, and may have those stopped that have more of it.


class LeastFirst(Policy):
    """The least of a measure first, then by arrival; whoever has most of it is stopped first."""

    preempts = True
    hysteresis: ClassVar[float] = 1.0
    """How many times as much a job must have to be stopped for another."""

    def measure(self, job: JobState, now_s: float) -> float:
        """Return how much a job has, or has had."""
        raise NotImplementedError

    def key(self, job: JobState, now_s: float) -> Key:
        """Least first, then arrival."""
        return (self.measure(job, now_s), job.job.arrival_s)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Stop a job that has more."""
        return self.measure(running, now_s) > self.hysteresis * waiting.key[0]

    def rank(self, running: JobState, now_s: float) -> float:
        """Whoever has most goes first."""
        return self.measure(running, now_s)


# -- Max-min fairness over GPU-time in rounds: what Gavel's policy of that name does with one kind of GPU.
#
# Every round the GPUs go to the jobs that have had the least GPU-time, and a job that has had more than one
# that waits makes room for it.

ROUND_S = 360.0


class MaxMin(LeastFirst):
    """Least attained GPU-time first, in rounds; placed wherever there is room."""

    rotates = True
    quantum_s = ROUND_S
    min_run_s = ROUND_S

    def measure(self, job: JobState, now_s: float) -> float:
        """GPU-seconds a job has held by now."""
        return job.gpus * job.run_s(now_s)


# -- Tiresias: discretised two-dimensional least attained service, and consolidation of skewed models only.
#
# Our reading of its published rules: jobs move down queues as they attain GPU-seconds; a job that has waited
# long compared with what it has run is promoted; models with one dominant tensor are placed as close together
# as they can be, however long that takes, the others anywhere.

QUEUE_LIMITS_GPU_S = (3250.0, 7200.0)
"""Those of the authors' code, which names a third limit but makes three queues."""
SKEWED = frozenset({"lm", "transformer", "bert", "ncf", "vgg11", "vgg16", "vgg19", "alexnet"})
"""Models whose parameters sit mostly in one tensor (embeddings, large fully connected layers)."""


class Tiresias(LeastFirst):
    """Least attained GPU-service first, in queues; skewed models are consolidated."""

    reorders = True
    promote_after: ClassVar[float] = 8.0
    """A job that has waited this many times as long as it ran goes back to the first queue."""

    def measure(self, job: JobState, now_s: float) -> float:
        """The number of the queue that a job is in."""
        run_s = job.run_s(now_s)
        waited_s = now_s - job.since_s if not job.placement else 0.0
        if run_s > 0.0 and waited_s > self.promote_after * run_s:
            return 0
        return bisect_right(QUEUE_LIMITS_GPU_S, job.gpus * run_s)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Skewed models hold out for the closest tier, the others take what there is."""
        return (FOREVER, FOREVER) if job.job.model in SKEWED else (0.0, 0.0)

    def rank(self, running: JobState, now_s: float) -> float:
        """The lowest queue goes first, and there the latest arrival."""
        return self.measure(running, now_s) * 1e12 + running.job.arrival_s


# -- Themis-like: finish-time fairness. Whoever is treated worst compared with an own cluster goes first.
#
#     rho = (time since arrival + ideal time left) / ideal time of the whole job
#
# GPUs are leased: when a lease ends, a job that fares better than a waiting one may lose its GPUs.

LEASE_S = 1200.0
HYSTERESIS = 1.5


class Themis(Policy):
    """The largest finish-time ratio first, by leases."""

    preempts = True
    reorders = True
    knows_service = True
    min_run_s = LEASE_S

    def rho(self, job: JobState, now_s: float) -> float:
        """Finish-time ratio: 1 is a job that never waited."""
        return (now_s - job.submitted_s + job.remaining_s(now_s)) / max(job.job.service_s, 1.0)

    def key(self, job: JobState, now_s: float) -> Key:
        """Worst off first."""
        return (-self.rho(job, now_s),)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Take the GPUs of an expired lease from a job that fares much better."""
        return self.rho(waiting, now_s) > HYSTERESIS * self.rho(running, now_s)


# -- Gandiva-like: start anywhere, share by time slices, and migrate to closer placements when there is room.

SLICE_S = 1800.0


class Gandiva(LeastFirst):
    """Round robin in slices, best-fit packing, introspective migration."""

    migrates = True
    quantum_s = 600.0
    min_run_s = SLICE_S

    def measure(self, job: JobState, now_s: float) -> float:
        """Full slices of time a job has had."""
        return job.run_s(now_s) // SLICE_S

    def rank(self, running: JobState, now_s: float) -> float:
        """Whoever ran longest goes first."""
        return running.run_s(now_s)


# -- Backfill: arrival order, but a job may pass others if by everybody's time limit it delays none of them.
#
# What Slurm's sched/backfill does between its strict passes: every `interval_s`, the first 500 waiting jobs
# are planned in order on the machines that time limits say will be free. A job planned for now
# starts. A job without a limit counts as one that never ends. `resolution_s` is Slurm's bf_resolution.


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


# -- SRTF and SRSF: shortest remaining time or service first, told how long jobs take (an oracle).


class Srtf(LeastFirst):
    """Shortest remaining time first, preemptive, placed wherever there is room."""

    knows_service = True
    hysteresis = 2.0

    def measure(self, job: JobState, now_s: float) -> float:
        """Seconds left to do."""
        return job.remaining_s(now_s)


class Srsf(Srtf):
    """Shortest remaining service (time × GPUs) first."""

    def measure(self, job: JobState, now_s: float) -> float:
        """GPU-seconds left."""
        return job.gpus * job.remaining_s(now_s)


# -- Least workload first, told durations. LWF-κ is a rule of placement, this one of order.


class Lwf(Policy):
    """Least GPU-seconds first without preemption; gangs stay within a rack, to keep uplinks calm."""

    knows_service = True

    def key(self, job: JobState, now_s: float) -> Key:
        """Least remaining GPU-seconds first."""
        return (job.gpus * job.remaining_s(now_s),)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Any machine of a rack will do at once; another rack never."""
        return (0.0, FOREVER) if job.gpus > 1 else (0.0, 0.0)


# -- FIFO and fit-first: jobs in order of arrival, with or without passing a job that does not fit.


class FifoPolicy(Policy):
    """Strict arrival order: nobody passes the first in line."""

    blocking = True
    obeys = True


class FitFirst(Policy):
    """Arrival order, but a job that fits may pass those that do not; any free GPUs will do."""
