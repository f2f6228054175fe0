"""Running jobs that may be stopped for others, indexed by machine; and whom to stop for a waiting gang.

A job ripens some time after its start (the policy says when) and only then is looked at. The search goes
topology first: a machine, then a rack, then the cluster, never beyond the tier the waiting gang is allowed;
within a domain the smallest set; and only a domain where the gang then fits is usable.
"""

from heapq import heappop, heappush
from operator import add

from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.scheduling.free_gpus import FreeGpus
from slimsched.jobs.scheduling.job_state import RUNNING, JobState
from slimsched.jobs.scheduling.policy import Policy

DOMAINS_TRIED = 8
"""Domains of one tier that are looked at closely, those that lack the fewest GPUs first."""

Members = list[tuple[int, JobState]]
"""Jobs with the GPUs each would free in a domain."""


class Eviction:
    """Victims, and the placement the waiting gang gets once they are gone."""

    __slots__ = ("placement", "victims")

    def __init__(self, victims: list[JobState], placement: Placement) -> None:
        self.victims = victims
        self.placement = placement


class _Ripe:
    """GPUs of the jobs that may be stopped for waiting jobs of one class, by machine, by rack and in all.

    `most` is what one machine and one rack would have at most if they went, as of the changes `looked_at`.
    """

    __slots__ = ("by_machine", "by_rack", "looked_at", "most", "number", "total")

    def __init__(self, number: int, machines: int, racks: int) -> None:
        self.number = number
        self.by_machine = [0] * machines
        self.by_rack = [0] * racks
        self.total = 0
        self.looked_at = [-1, -1]
        self.most = [0, 0]


class Evictable:
    """Running jobs by the class of waiting jobs they may be stopped for.

    A job ripens for class 0 first, then for class 1 and so on, each at a time the policy tells. So one number
    per job says for which classes it is ripe: all below its level.
    """

    def __init__(self, free: FreeGpus, policy: Policy) -> None:
        self._free = free
        self._policy = policy
        machines, racks = len(free.names), len(free.by_rack)
        self._classes = [_Ripe(number, machines, racks) for number in range(policy.eviction_classes)]
        self._changes = 0
        self._level: dict[JobState, int] = {}
        self._on: list[dict[JobState, int]] = [{} for _ in range(machines)]
        self._unripe: list[tuple[float, int, JobState, int, int]] = []
        self._machines_of: list[list[int]] = [[] for _ in free.by_rack]
        for machine, rack in enumerate(free.rack_of):
            self._machines_of[rack].append(machine)

    def add(self, job: JobState, now_s: float) -> None:
        """A job has started."""
        heappush(self._unripe, (self._policy.evictable_at_s(job, 0, now_s), job.seq, job, job.epoch, 0))

    def remove(self, job: JobState) -> None:
        """A job has stopped, or is about to."""
        level = self._level.pop(job, 0)
        if level:
            for machine, _ in job.spots:
                del self._on[machine][job]
            for ripe in self._classes[:level]:
                self._count(ripe, job, -1)

    def _count(self, ripe: _Ripe, job: JobState, sign: int) -> None:
        """Add a job's GPUs to those of a class, or take them off."""
        rack_of = self._free.rack_of
        self._changes += 1
        ripe.total += sign * job.gpus
        for machine, gpus in job.spots:
            gpus *= sign
            ripe.by_machine[machine] += gpus
            ripe.by_rack[rack_of[machine]] += gpus

    def _ripen(self, now_s: float) -> None:
        """Let jobs ripen whose time has come."""
        unripe, classes, policy = self._unripe, self._classes, self._policy
        while unripe and unripe[0][0] <= now_s:
            _, _, job, epoch, number = heappop(unripe)
            if job.epoch != epoch or job.phase != RUNNING:
                continue
            if not number:
                for machine, gpus in job.spots:
                    self._on[machine][job] = gpus
            at_s = now_s
            while at_s <= now_s:
                self._count(classes[number], job, 1)
                number += 1
                if number == len(classes):
                    break
                at_s = policy.evictable_at_s(job, number, now_s)
            else:
                heappush(unripe, (at_s, job.seq, job, epoch, number))
            self._level[job] = number

    def find(self, waiting: JobState, now_s: float) -> Eviction | None:
        """The victims whose going lets this gang fit at its allowed tier, or None."""
        unripe = self._unripe
        if unripe and unripe[0][0] <= now_s:
            self._ripen(now_s)
        free, gpus = self._free, waiting.gpus
        ripe = self._classes[self._policy.eviction_class(waiting)]
        if free.total + ripe.total < gpus:
            return None
        considered: list[str] = []
        for tier in range(waiting.floor, waiting.allowed + 1):
            for have, domain in self._domains(tier, gpus, ripe):
                members = self._members(tier, domain, ripe, waiting, now_s)
                considered += [job.id for _, job in members[:8]]
                victims = _smallest(gpus - have, members)
                if victims is not None:
                    waiting.victims_considered = tuple(considered[:8])
                    return Eviction(victims, self._placement(tier, domain, gpus, victims))
        waiting.victims_considered = tuple(considered[:8])
        return None

    def _domains(self, tier: int, gpus: int, ripe: _Ripe) -> list[tuple[int, int]]:
        """Domains of a tier with room for the gang if all ripe jobs went, most free GPUs first."""
        free = self._free
        if tier == Tier.NETWORK:
            return [(free.total, 0)]
        if tier == Tier.MACHINE:
            have, more = free.by_machine, ripe.by_machine
        else:
            have, more = free.by_rack, ripe.by_rack
        changes = free.changes + self._changes
        if ripe.looked_at[tier] != changes:
            ripe.looked_at[tier] = changes
            ripe.most[tier] = max(map(add, have, more))
        if ripe.most[tier] < gpus:
            return []
        fitting = [(h, -i) for i, (h, r) in enumerate(zip(have, more, strict=True)) if h + r >= gpus]
        fitting.sort(reverse=True)
        return [(h, -i) for h, i in fitting[:DOMAINS_TRIED]]

    def _members(self, tier: int, domain: int, ripe: _Ripe, waiting: JobState, now_s: float) -> Members:
        """The jobs in a domain that may be stopped for this one, in the order they should go."""
        level, number = self._level, ripe.number
        inside: dict[JobState, int]
        if tier == Tier.MACHINE:
            inside = {job: gpus for job, gpus in self._on[domain].items() if level[job] > number}
        elif tier == Tier.NETWORK:
            inside = {job: job.gpus for job, its in level.items() if its > number}
        else:
            inside = {}
            for machine in self._machines_of[domain]:
                for job, gpus in self._on[machine].items():
                    if level[job] > number:
                        inside[job] = inside.get(job, 0) + gpus
        policy = self._policy
        members = [(gpus, job) for job, gpus in inside.items() if policy.may_evict(job, waiting, now_s)]
        if len(members) > 1:
            members.sort(key=lambda member: (-policy.rank(member[1], now_s), member[1].seq))
        return members

    def _placement(self, tier: int, domain: int, gpus: int, victims: list[JobState]) -> Placement:
        """Where the gang goes once the victims are gone: fullest machines of the roomiest racks first."""
        free = self._free
        if tier == Tier.MACHINE:
            return ((free.names[domain], gpus),)
        freed: dict[int, int] = {}
        for job in victims:
            for machine, count in job.spots:
                freed[machine] = freed.get(machine, 0) + count
        racks = [domain]
        if tier == Tier.NETWORK:
            room = list(free.by_rack)
            for machine, count in freed.items():
                room[free.rack_of[machine]] += count
            racks = sorted(range(len(room)), key=lambda rack: -room[rack])
        parts: list[tuple[str, int]] = []
        for rack in racks:
            inside = [(free.by_machine[m] + freed.get(m, 0), -m) for m in self._machines_of[rack]]
            inside.sort(reverse=True)
            for have, machine in inside:
                take = min(have, gpus)
                if take:
                    parts.append((free.names[-machine], take))
                    gpus -= take
                if not gpus:
                    return tuple(parts)
        raise AssertionError(f"{gpus} GPUs do not fit after the eviction")


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
