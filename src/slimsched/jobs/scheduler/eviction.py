"""Whom to stop for a waiting gang: running jobs by machine, and when each may first be stopped.

A job *ripens* some time after its start (the policy says when), and only then is looked at. The search goes
topology first: a machine, then a rack, then the cluster, never beyond the tier that the waiting gang allows.
In each such domain the smallest set of jobs is sought, and only if the gang then fits.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from slimsched.jobs.domain import Placement
from slimsched.jobs.scheduler.gpus import MACHINE, NETWORK, FreeGpus
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.waiting import RUNNING, JobState, JobTimes

DOMAINS_TRIED: Final = 8
"""Domains of one tier that are looked at closely, those that lack the fewest GPUs first."""

Members = list[tuple[int, JobState]]
"""Jobs with the GPUs each would free in a domain."""


class Eviction(NamedTuple):
    """Victims, and the placement the waiting gang gets once they are gone."""

    victims: list[JobState]
    placement: Placement


@dataclass(slots=True, eq=False)
class _Ripe:
    """GPUs of the jobs that may be stopped for waiting jobs of one class, by machine, by rack and in all."""

    number: int
    by_machine: list[int]
    by_rack: list[int]
    total: int = 0
    most: list[int] = field(default_factory=lambda: [0, 0])  # for a machine and a rack, if all of these went
    looked_at: list[int] = field(default_factory=lambda: [-1, -1])  # after how many changes that was found

    def count(self, job: JobState, rack_of: list[int], sign: int) -> None:
        """Add a job's GPUs (1), or take them out again (-1)."""
        by_machine, by_rack = self.by_machine, self.by_rack
        self.total += sign * job.gpus
        for machine, gpus in job.spots:
            by_machine[machine] += sign * gpus
            by_rack[rack_of[machine]] += sign * gpus


class Evictable:
    """Running jobs by the class of waiting jobs they may be stopped for.

    A job ripens for class 0 first, then for class 1 and so on, each at a time the policy tells. So one number
    per job, its ripeness, says for which classes it is ripe: all below it.
    """

    def __init__(self, free: FreeGpus, policy: Policy) -> None:
        self._free = free
        self._policy = policy
        machines, racks = len(free.names), len(free.by_rack)
        self._classes = [
            _Ripe(number, [0] * machines, [0] * racks) for number in range(policy.eviction_classes)
        ]
        self._changes = 0  # how often a job has ripened or gone
        self._ripe: dict[JobState, None] = {}  # jobs that may be stopped for some class
        self._on: list[dict[JobState, int]] = [{} for _ in free.names]  # them by machine, with GPUs there
        self._times = JobTimes()
        self._machines_of: list[list[int]] = [[] for _ in free.by_rack]
        for machine, rack in enumerate(free.rack_of):
            self._machines_of[rack].append(machine)

    def add(self, job: JobState, now_s: float) -> None:
        """A job has started."""
        self._times.add(self._policy.evictable_at_s(job, 0, now_s), job, 0)

    def remove(self, job: JobState) -> None:
        """A job has stopped, or is about to."""
        ripeness = job.ripeness
        if ripeness:
            job.ripeness = 0
            del self._ripe[job]
            for machine, _ in job.spots:
                del self._on[machine][job]
            self._changes += 1
            for ripe in self._classes[:ripeness]:
                ripe.count(job, self._free.rack_of, -1)

    def _ripen(self, now_s: float) -> None:
        """Let jobs ripen whose time has come."""
        classes, policy, times = self._classes, self._policy, self._times
        for job, number in times.due(now_s):
            if job.phase != RUNNING:
                continue
            self._changes += 1
            if not number:
                self._ripe[job] = None
                for machine, gpus in job.spots:
                    self._on[machine][job] = gpus
            at_s = now_s
            while at_s <= now_s:
                classes[number].count(job, self._free.rack_of, 1)
                number += 1
                if number == len(classes):
                    break
                at_s = policy.evictable_at_s(job, number, now_s)
            else:
                times.add(at_s, job, number)
            job.ripeness = number

    def find(self, waiting: JobState, now_s: float) -> Eviction | None:
        """The victims whose going lets this gang fit at its allowed tier, or None."""
        self._ripen(now_s)
        free, gpus = self._free, waiting.gpus
        ripe = self._classes[self._policy.eviction_class(waiting)]
        if free.total + ripe.total < gpus:
            return None
        considered: list[str] = []
        for tier in range(waiting.floor, waiting.allowed + 1):
            tried: list[int] = []
            while len(tried) < DOMAINS_TRIED:
                domain = self._best_domain(tier, gpus, ripe, tried)
                if domain < 0:
                    break
                tried.append(domain)
                members = self._members(tier, domain, ripe, waiting, now_s)
                considered += [job.id for _, job in members[:8]]
                free_there = (free.by_machine, free.by_rack, [free.total])[tier][domain]
                victims = _smallest(gpus - free_there, members)
                if victims is not None:
                    waiting.victims_considered = tuple(considered[:8])
                    return Eviction(victims, self._placement(tier, domain, gpus, victims))
        waiting.victims_considered = tuple(considered[:8])
        return None

    def _best_domain(self, tier: int, gpus: int, ripe: _Ripe, tried: list[int]) -> int:
        """Return the domain with most GPUs free among those with room if all ripe jobs went, or -1."""
        if tier == NETWORK:
            return -1 if tried else 0
        free = self._free
        changes = free.changes + self._changes
        if ripe.looked_at[tier] == changes and ripe.most[tier] < gpus:
            return -1
        if tier == MACHINE:
            have, more = free.by_machine, ripe.by_machine
        else:
            have, more = free.by_rack, ripe.by_rack
        best = most_free = -1
        most = 0
        for domain, gpus_free in enumerate(have):
            room = gpus_free + more[domain]
            if room > most:
                most = room
            if gpus_free > most_free and room >= gpus and domain not in tried:
                best, most_free = domain, gpus_free
        ripe.looked_at[tier] = changes
        ripe.most[tier] = most
        return best

    def _members(self, tier: int, domain: int, ripe: _Ripe, waiting: JobState, now_s: float) -> Members:
        """The jobs in a domain that may be stopped for this one, in the order they should go."""
        number = ripe.number
        inside: dict[JobState, int] = {}
        if tier == MACHINE:
            inside = self._on[domain]
        elif tier == NETWORK:
            inside = {job: job.gpus for job in self._ripe}
        else:
            for machine in self._machines_of[domain]:
                for job, gpus in self._on[machine].items():
                    inside[job] = inside.get(job, 0) + gpus
        policy = self._policy
        ranked = [
            (-policy.rank(job, now_s), job.seq, gpus, job)
            for job, gpus in inside.items()
            if job.ripeness > number and policy.may_evict(job, waiting, now_s)
        ]
        ranked.sort()  # no two jobs have the same number, so jobs themselves are never compared
        return [(gpus, job) for _, _, gpus, job in ranked]

    def _placement(self, tier: int, domain: int, gpus: int, victims: list[JobState]) -> Placement:
        """Where the gang goes once the victims are gone: fullest machines of the roomiest racks first."""
        free = self._free
        if tier == MACHINE:
            return ((free.names[domain], gpus),)
        freed = Counter[int]()
        for job in victims:
            freed.update(dict(job.spots))
        racks = [domain]
        if tier == NETWORK:
            room = list(free.by_rack)
            for machine, count in freed.items():
                room[free.rack_of[machine]] += count
            racks = sorted(range(len(room)), key=lambda rack: -room[rack])
        parts: list[tuple[str, int]] = []
        for rack in racks:
            inside = [(free.by_machine[m] + freed[m], -m) for m in self._machines_of[rack]]
            inside.sort(reverse=True)
            for have, machine in inside:
                take = min(have, gpus)
                if take:
                    parts.append((free.names[-machine], take))
                    gpus -= take
                if not gpus:
                    return tuple(parts)
        gone = "; ".join(job.story() for job in victims)
        raise AssertionError(f"{gpus} GPUs do not fit once these are gone: {gone}")

    def validate(self, running: Collection[JobState]) -> None:
        """Raise an AssertionError unless every class counts the GPUs of the jobs that are ripe for it."""
        ripe_jobs = [job for job in running if job.ripeness]
        assert set(ripe_jobs) == set(self._ripe), (
            "jobs that do not run may be stopped, or the other way round"
        )
        for job in ripe_jobs:
            assert job.phase == RUNNING, f"it may still be stopped for others: {job.story()}"
        held = {(machine, job): gpus for job in ripe_jobs for machine, gpus in job.spots}
        counted_on = {(machine, job): on[job] for machine, on in enumerate(self._on) for job in on}
        assert counted_on == held, "other jobs may be stopped on a machine than run there"
        for ripe in self._classes:
            counted = _Ripe(ripe.number, [0] * len(ripe.by_machine), [0] * len(ripe.by_rack))
            for job in ripe_jobs:
                if job.ripeness > ripe.number:
                    counted.count(job, self._free.rack_of, 1)
            gpus = (counted.by_machine, counted.by_rack, counted.total)
            assert (ripe.by_machine, ripe.by_rack, ripe.total) == gpus, f"class {ripe.number} is miscounted"


def _smallest(needed: int, members: Members) -> list[JobState] | None:
    """First in order first gone until enough is free, then spare whom we need not stop after all."""
    chosen: Members = []
    for count, job in members:
        if needed <= 0:
            break
        chosen.append((count, job))
        needed -= count
    if needed > 0:
        return None
    spare = -needed
    kept: list[JobState] = []
    for count, job in reversed(chosen):
        if count <= spare:
            spare -= count
        else:
            kept.append(job)
    return kept
