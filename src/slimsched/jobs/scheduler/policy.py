"""What makes one scheduler differ from another: order, waiting, preemption, migration.

`Policy` itself is first come, first served without waiting for locality; a rival overrides what it does
differently, in a file of its own under `policies/`.
"""

from typing import ClassVar

from slimsched.jobs.domain import Tier, Topology
from slimsched.jobs.scheduler.waiting import JobState, Key

FOREVER = float("inf")
Timers = tuple[float, float]
"""Seconds after the first declined offer when the rack (Tm) and the network (Tr) become allowed; Tm ≤ Tr."""


class Policy:
    """First come, first served; whoever fits runs; nobody waits for a better place."""

    blocking: ClassVar[bool] = False
    """Whether nobody may pass a job that does not fit."""
    preempts: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    """Whether at each look all waiting jobs may stop others, not only the first few of each size."""
    migrates: ClassVar[bool] = False
    calm: ClassVar[bool] = False
    """Whether gangs that must cross racks keep away from each other's uplinks."""
    quantum_s: ClassVar[float] = 300.0
    """Seconds between two looks at who should be preempted or migrated."""
    eviction_classes: ClassVar[int] = 1
    """Classes of waiting jobs by whom they may stop."""
    min_run_s: ClassVar[float] = 600.0
    """Seconds a job runs before it may be preempted or moved."""
    reorders: ClassVar[bool] = False
    """Whether the order of waiting jobs changes with time."""
    reorder_s: ClassVar[float] = 300.0
    """Seconds between two reorderings, in whole quanta."""
    reserve_after_s: ClassVar[float] = FOREVER
    """Wait after which a gang gets GPUs set aside for it."""
    obeys: ClassVar[bool] = False
    """Whether a gang takes as many machines as its user asked for, and no other number."""
    resizes: ClassVar[bool] = False
    """Whether jobs may get another number of GPUs than they ask for; then `sizes` says how many."""
    backfills: ClassVar[bool] = False
    """Whether jobs may pass others if by all time limits that delays nobody; tried every quantum."""
    resolution_s: ClassVar[float] = 60.0
    """Steps to which a policy that backfills rounds the times it plans."""
    knows_service: ClassVar[bool] = False
    """Whether the policy is told how long jobs take, which a live cluster cannot tell."""

    def begin(self, topology: Topology) -> None:
        """Learn which cluster this is, before the first job.

        Called again when a live scheduler starts afresh: forget its jobs, for those that still exist are
        told anew, and keep what was learned.
        """

    def admit(self, job: JobState, now_s: float) -> None:
        """Note a job that is new here."""

    def key(self, job: JobState, now_s: float) -> Key:
        """Return where a waiting job stands in the order; the smallest key goes first."""
        return (job.job.arrival_s,)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Say how long this job holds out for a machine and for a rack; `backlog` is waiting jobs per GPU."""
        return (0.0, 0.0)

    def sizes(self, jobs: list[JobState], gpus: int, now_s: float) -> list[int]:
        """Say how many of these GPUs each job should have, of its `sizes`; 0 lets it wait."""
        return [job.gpus for job in jobs]

    def worth_planning(self) -> bool:
        """Whether a policy that backfills would plan otherwise than the last time."""
        return True

    def eviction_class(self, waiting: JobState) -> int:
        """Waiting jobs of a lower class may stop more; class 0 may stop most."""
        return 0

    def evictable_at_s(self, job: JobState, for_class: int, now_s: float) -> float:
        """When a running job may be stopped for waiting jobs of a class, at the earliest."""
        return now_s + self.min_run_s

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Whether a running job that is ripe for the class may be stopped for this waiting one."""
        return True

    def rank(self, running: JobState, now_s: float) -> float:
        """Among those that may be evicted, the highest rank goes first."""
        return running.service_s(now_s)

    def should_move(self, job: JobState, to: Tier, now_s: float) -> bool:
        """Whether a running job is worth stopping to go on at another tier."""
        return job.slow[job.tier] >= 1.1 * job.slow[to]

    def should_separate(self, job: JobState, others: int, now_s: float) -> bool:
        """Whether to move a gang that shares its uplinks with `others` gangs to quiet racks."""
        return False

    def launched(self, job: JobState, tier: Tier, declined_for_s: float, now_s: float) -> None:
        """Learn that a job started at a tier, `declined_for_s` after the first offer it declined."""

    def widened(self, job: JobState, tier: Tier, declined_for_s: float) -> None:
        """Learn that a job stopped holding out for this tier."""

    def left(self, job: JobState, tier: Tier, run_s: float, served_s: float | None) -> None:
        """Learn that a run at a tier has ended, and the ideal service it brought if that is known."""

    def dropped(self, job: JobState) -> None:
        """Learn that a waiting job has gone without ever being done."""

    def finished(self, job: JobState, service_s: float) -> None:
        """Learn that a job is done, and the ideal service it needed."""
