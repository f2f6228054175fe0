"""The state of each job, and the waiting jobs grouped by what they need.

An offer of free GPUs looks at groups and not at jobs: jobs of one group (GPUs, allowed tier, quota) fit or do
not fit together, so only the first of each matters. Delay timers say when a job's next tier becomes allowed.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from slimsched.core.config import SlimError
from slimsched.jobs.domain import Job, Placement, Scaling, Tier, Topology
from slimsched.jobs.scheduler.network import Traits

# -- What a scheduler knows about one job; the only mutable thing policies look at.

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


# -- Whether a cluster can ever give a job what it asks for.


class DemandError(SlimError):
    """A job asks for what this cluster can never give."""


def check_demand(job: Job, topology: Topology, quotas: Mapping[str, int]) -> None:
    """Raise if a job can never run here."""
    if not 1 <= job.gpus <= topology.gpus:
        raise DemandError(
            f"job '{job.id}' asks for {job.gpus} GPUs, but cluster '{topology.name}' has {topology.gpus}; "
            f"drop the job or name a larger cluster"
        )
    quota = quotas.get(job.tenant)
    if quota is not None and job.gpus > quota:
        raise DemandError(
            f"job '{job.id}' asks for {job.gpus} GPUs, but tenant '{job.tenant}' has a quota of {quota}; "
            f"raise the quota or shrink the job"
        )


# -- Delay timers: when a waiting job's next tier becomes allowed. One entry per job, level and epoch.


class DelayTimers:
    """The timers of all jobs that have declined an offer; those of jobs that moved on are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, JobState, int]] = []

    def arm(self, job: JobState, now_s: float) -> None:
        """Arm the timer of the tier the job now holds out for."""
        assert job.clock_s is not None
        at_s = max(now_s, job.clock_s + job.timers[0 if job.allowed == Tier.MACHINE else 1])
        if at_s < float("inf"):
            heappush(self._heap, (at_s, job.seq, job, job.epoch))

    def next_s(self) -> float:
        """When the next timer runs out."""
        heap = self._heap
        while heap:
            at_s, _, job, epoch = heap[0]
            if job.epoch == epoch:
                return at_s
            heappop(heap)
        return float("inf")

    def due(self, now_s: float) -> list[JobState]:
        """The jobs whose timer has run out."""
        jobs: list[JobState] = []
        while self.next_s() <= now_s:
            jobs.append(heappop(self._heap)[2])
        return jobs


GroupName = tuple[int, int, str]
NOBODY = 1 << 60
"""More GPUs than there are: what is needed where nobody waits."""


class Group:
    """Waiting jobs that need the same; those that moved on are dropped when they come to the top."""

    __slots__ = ("declines", "fresh", "gpus", "heap", "size", "tenant", "tier")

    def __init__(self, gpus: int, tier: Tier, tenant: str) -> None:
        self.gpus = gpus
        self.tier = tier
        self.tenant = tenant
        self.heap: list[tuple[Key, int, JobState, int]] = []
        self.fresh: list[tuple[JobState, int]] = []
        self.size = 0
        self.declines = 0

    def head(self) -> JobState:
        """The first job in order; the group must not be empty."""
        heap = self.heap
        while True:
            _, _, job, epoch = heap[0]
            if job.epoch == epoch:
                return job
            heappop(heap)


class Waiting:
    """All waiting jobs in their groups."""

    def __init__(self) -> None:
        self._by_name: dict[GroupName, Group] = {}
        self.groups: list[Group] = []
        self.size = 0
        self.longest_since_s = -inf
        """Nobody has waited since an earlier time."""
        self.least = NOBODY
        """GPUs that the smallest waiting gang needs."""

    def join(self, job: JobState, tenant: str = "") -> Group:
        """Put a job into the group of its demand and allowed tier."""
        name = (job.gpus, int(job.allowed), tenant)
        group = self._by_name.get(name)
        if group is None:
            group = self._by_name[name] = Group(job.gpus, job.allowed, tenant)
        if not group.size:
            self.groups.append(group)
            if group.gpus < self.least:
                self.least = group.gpus
        job.epoch += 1
        job.group = group
        job.declined -= group.declines
        group.size += 1
        self.size += 1
        heappush(group.heap, (job.key, job.seq, job, job.epoch))
        if job.clock_s is None:
            group.fresh.append((job, job.epoch))
        return group

    def leave(self, job: JobState) -> None:
        """Take a job out."""
        group = job.group
        assert group is not None, f"job {job.id} does not wait"
        job.group = None
        job.epoch += 1
        job.declined += group.declines
        group.size -= 1
        self.size -= 1
        if not group.size:
            self.groups.remove(group)
            if group.gpus == self.least:
                self.least = min([other.gpus for other in self.groups], default=NOBODY)
            group.heap.clear()
            group.fresh.clear()

    def heads(self, count: int) -> list[JobState]:
        """Return the first job of each group, in order, at most `count`."""
        heads = [group.head() for group in self.groups]
        heads.sort(key=lambda job: (job.key, job.seq))
        return heads[:count]

    def jobs(self) -> list[JobState]:
        """All waiting jobs in order."""
        entries = [entry for group in self.groups for entry in group.heap if entry[2].epoch == entry[3]]
        return [job for _, _, job, _ in sorted(entries, key=lambda entry: (entry[0], entry[1]))]

    def longest(self) -> JobState | None:
        """The job that has waited longest, and note since when: later ones come with later times."""
        longest: JobState | None = None
        for group in self.groups:
            for _, _, job, epoch in group.heap:
                if job.epoch == epoch and (
                    longest is None or (job.since_s, job.seq) < (longest.since_s, longest.seq)
                ):
                    longest = job
        if longest is not None:
            self.longest_since_s = longest.since_s
        return longest

    def reorder(self, key_of: "dict[JobState, Key]") -> None:
        """Give every waiting job a new key."""
        for group in self.groups:
            live = [job for _, _, job, epoch in group.heap if job.epoch == epoch]
            for job in live:
                job.key = key_of[job]
            group.heap = [(job.key, job.seq, job, job.epoch) for job in live]
            heapify(group.heap)
