"""The state of each job, and the waiting jobs grouped by what they need.

An offer of free GPUs looks at groups and not at jobs: jobs of one group (GPUs, allowed tier, quota) fit or do
not fit together, so only the first of each matters. Delay timers say when a job's next tier becomes allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from slimsched.core.config import SlimError
from slimsched.jobs.domain import Job, Placement, Scaling, Tier, Topology, where

Key = tuple[float, ...]
"""Waiting jobs are served in ascending order of their keys."""

WAITING: Final = 0
CLAIMING: Final = 1
RUNNING: Final = 2
STOPPING: Final = 3
"""Phases: where a job stands. Plain numbers, because they are compared at every event."""
PHASES = ("waiting", "claiming", "running", "stopping")

NEXT_PHASES: Final = {
    WAITING: (RUNNING, CLAIMING),  # it starts; other jobs are stopped or waited for so that it can
    CLAIMING: (RUNNING, WAITING),  # its last GPU is free; or a machine of its claim is lost
    RUNNING: (STOPPING, WAITING),  # it is told to stop; or did not start, or somebody else stopped it
    STOPPING: (WAITING, CLAIMING),  # it has stopped; and has GPUs set aside to go on with
}
"""Which phase may follow which; whatever a job's phase, it may finish and be forgotten."""


@dataclass(slots=True, eq=False)
class JobState:
    """All that the scheduler knows about one job. Policies read it, and may set `estimate_s`."""

    job: Job
    id: str
    seq: int  # its number in the order of admission, by which equal jobs are told apart
    gpus: int  # that it holds or waits for; where policies resize jobs, not always what it asks for
    floor: Tier  # the closest tier that so many GPUs can reach on this cluster
    allowed: Tier  # the farthest tier that it accepts now
    tier: Tier  # how far apart its GPUs are, or were when it last ran
    slow: tuple[float, float, float]  # slowdown at each tier, the network to itself; 1 is what it asks for
    network_duty: float  # share of its time that it would communicate if it were spread over racks
    submitted_s: float  # when this scheduler was first told of it
    since_s: float  # when it began to wait, or to run
    phase: int = WAITING
    served_s: float = 0.0  # ideal service that it had when it last began to wait or to run
    estimate_s: float = 0.0  # service that its policy predicts, if it does
    waited_s: float = 0.0  # time for which it had waited when it last started
    ran_s: float = 0.0  # time for which it had held GPUs when it last stopped
    key: Key = ()  # its place in the order of waiting jobs
    timers: tuple[float, float] = (0.0, 0.0)  # seconds of declining until the rack, then the network will do
    clock_s: float | None = None  # when it declined an offer for the first time since it waits
    declined: int = 0  # offers declined; while it waits, less those its group had declined before
    epoch: int = 0  # grows when it joins, leaves, stops: entries in heaps of an earlier epoch are void
    group: "Group | None" = None  # the group with which it waits
    placement: Placement = ()  # the GPUs that it holds
    spots: list[tuple[int, int]] = field(default_factory=list)  # the same, or the last, by machine number
    slow_here: float = 1.0  # the slowdown at its tier, with the network to itself
    ripeness: int = 0  # classes of waiting jobs for which it may be stopped: all below this number
    preemptions: int = 0  # how often it has been stopped
    sizes: Scaling = ()  # GPUs that it may have, each with its pace, where the policy resizes jobs
    victims_considered: tuple[str, ...] = ()  # jobs that were looked at to make room for it

    def enter(self, phase: int) -> None:
        """Go on to the next phase."""
        if phase not in NEXT_PHASES[self.phase]:
            raise AssertionError(f"{self.story()}; it cannot be {PHASES[phase]} next")
        self.phase = phase

    def story(self) -> str:
        """Tell what has happened to this job so far, for errors that should not happen."""
        return (
            f"job '{self.id}' ({self.gpus} GPUs) came at {self.submitted_s:.3f} s and has waited "
            f"{self.waited_s:.3f} s, run {self.ran_s:.3f} s and been stopped {self.preemptions} times until "
            f"it began to wait or to run at {self.since_s:.3f} s; it is {PHASES[self.phase]} on "
            f"{where(self.placement) or 'no GPUs'}"
        )

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


# -- Times at which something about a job changes: delay timers, and when it may first be stopped for others.


class JobTimes:
    """Times of jobs, each with a number that says what for; those of jobs that moved on are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, JobState]] = []  # when, number, epoch, what for, job

    def add(self, at_s: float, job: JobState, what: int = 0) -> None:
        """Note a time, which is void once the job's epoch has changed; an endless one never comes."""
        if at_s < inf:
            heappush(self._heap, (at_s, job.seq, job.epoch, what, job))

    def next_s(self) -> float:
        """When the next of them comes."""
        heap = self._heap
        while heap:
            at_s, _, epoch, _, job = heap[0]
            if job.epoch == epoch:
                return at_s
            heappop(heap)
        return inf

    def due(self, now_s: float) -> list[tuple[JobState, int]]:
        """Take out what has come by now."""
        due: list[tuple[JobState, int]] = []
        while self.next_s() <= now_s:
            _, _, _, what, job = heappop(self._heap)
            due.append((job, what))
        return due


NOBODY = 1 << 60
"""More GPUs than there are: what is needed where nobody waits."""


@dataclass(slots=True, eq=False)
class Group:
    """Waiting jobs that need the same; those that moved on are dropped when they come to the top."""

    gpus: int
    tier: Tier  # the farthest that they allow
    tenant: str  # whose quota they need, if anybody's
    heap: list[tuple[Key, int, JobState, int]] = field(default_factory=list)  # by key and number, with epochs
    fresh: list[tuple[JobState, int]] = field(default_factory=list)  # who has not declined yet, with epochs
    size: int = 0  # jobs that wait
    declines: int = 0  # offers that all of them declined

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
        self._by_name: dict[tuple[int, int, str], Group] = {}  # by GPUs, tier and tenant
        self.groups: list[Group] = []  # those in which jobs wait
        self.size = 0  # jobs in all groups
        self.longest_since_s = -inf  # nobody has waited since an earlier time
        self.least = NOBODY  # GPUs that the smallest waiting gang needs

    def join(self, job: JobState, tenant: str = "") -> None:
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
        longest = min(self.jobs(), key=lambda job: (job.since_s, job.seq), default=None)
        if longest is not None:
            self.longest_since_s = longest.since_s
        return longest

    def reorder(self, key_of: Mapping[JobState, Key]) -> None:
        """Give every waiting job a new key."""
        for job, key in key_of.items():
            job.key = key
        for group in self.groups:
            live = [job for _, _, job, epoch in group.heap if job.epoch == epoch]
            group.heap = [(job.key, job.seq, job, job.epoch) for job in live]
            heapify(group.heap)

    def validate(self) -> None:
        """Raise an AssertionError unless groups hold the jobs that they count, each once."""
        for group in self.groups:
            live = [job for _, _, job, epoch in group.heap if job.epoch == epoch]
            assert 0 < group.size == len(live), f"{len(live)} jobs wait, but {group.size} are counted"
            for job in live:
                assert job.group is group, f"another group has it: {job.story()}"
        assert self.size == sum(group.size for group in self.groups), "not every waiting job is counted"
        assert self.least == min([group.gpus for group in self.groups], default=NOBODY)
