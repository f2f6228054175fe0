"""The waiting jobs, grouped by what they need, so that an offer looks at groups and not at jobs.

Jobs of one group (GPUs, allowed tier, quota) fit or do not fit together; only the first of each matters.
"""

from heapq import heapify, heappop, heappush
from math import inf

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.scheduling.job_state import JobState, Key

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
