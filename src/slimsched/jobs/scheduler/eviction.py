"""Running jobs that may be stopped for others, indexed by machine; and whom to stop for a waiting gang.

A job ripens some time after its start (the policy says when) and only then is looked at. The search goes
topology first: a machine, then a rack, then the cluster, never beyond the tier the waiting gang is allowed;
within a domain the smallest set; and only a domain where the gang then fits is usable.

A job ripens before it may be stopped: times to come are noted once, and looked at when they are due.
"""

from heapq import heappop, heappush
from math import inf
from typing import Final

from slimsched.jobs.domain import Placement
from slimsched.jobs.scheduler.gpus import FreeGpus
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.waiting import RUNNING, JobState

# -- When running jobs may first be stopped for others: times to come, cheap to note and to forget.
#
# Most of these times never come, because the job ends before. So times that are far off lie unsorted in
# lists,
# one list per step of ten minutes, and are sorted only when their step begins.

STEP_S: Final = 600.0

Ripening = tuple[float, int, JobState, int, int]
"""(when, the job's number, the job, its epoch, the class of waiting jobs it may then be stopped for)."""


class RipeningTimes:
    """The ripening of every running job that is to come next; those of jobs that moved on are dropped."""

    def __init__(self) -> None:
        self._soon: list[Ripening] = []
        """A heap of those before `_sorted_until_s`."""
        self._sorted_until_s = -inf
        self._later: dict[int, list[Ripening]] = {}
        """The others, by step."""
        self._steps: list[int] = []
        """A heap of the keys of `_later`."""

    def add(self, at_s: float, job: JobState, for_class: int) -> None:
        """Note when a running job ripens for a class."""
        entry = (at_s, job.seq, job, job.epoch, for_class)
        if at_s < self._sorted_until_s:
            heappush(self._soon, entry)
        elif at_s < inf:
            step = int(at_s // STEP_S)
            others = self._later.get(step)
            if others is None:
                self._later[step] = [entry]
                heappush(self._steps, step)
            else:
                others.append(entry)

    def due(self, now_s: float) -> list[Ripening]:
        """Take out what has come by now."""
        due: list[Ripening] = []
        soon = self._soon
        while soon and soon[0][0] <= now_s:
            entry = heappop(soon)
            if _holds(entry):
                due.append(entry)
        if now_s >= self._sorted_until_s:
            self._begin_step(now_s, due)
        return due

    def _begin_step(self, now_s: float, due: list[Ripening]) -> None:
        """Sort the times of the step that has begun; add those that have come by now to `due`."""
        present = int(now_s // STEP_S)
        self._sorted_until_s = (present + 1) * STEP_S
        while self._steps and self._steps[0] <= present:
            for entry in self._later.pop(heappop(self._steps)):
                if _holds(entry):
                    if entry[0] <= now_s:
                        due.append(entry)
                    else:
                        heappush(self._soon, entry)


def _holds(entry: Ripening) -> bool:
    """Whether the job still runs as it did when this was noted."""
    job = entry[2]
    return job.epoch == entry[3] and job.phase == RUNNING


MACHINE: Final = 0
NETWORK: Final = 2
"""Tiers as plain numbers, because they are compared often."""

DOMAINS_TRIED: Final = 8
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
    per job, its ripeness, says for which classes it is ripe: all below it.
    """

    def __init__(self, free: FreeGpus, policy: Policy) -> None:
        self._free = free
        self._policy = policy
        machines, racks = len(free.names), len(free.by_rack)
        self._classes = [_Ripe(number, machines, racks) for number in range(policy.eviction_classes)]
        self._changes = 0
        self._ripe: dict[JobState, None] = {}
        self._on: list[dict[JobState, int]] = [{} for _ in range(machines)]
        self._times = RipeningTimes()
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
            rack_of = self._free.rack_of
            for number in range(ripeness):
                ripe = self._classes[number]
                by_machine, by_rack = ripe.by_machine, ripe.by_rack
                ripe.total -= job.gpus
                for machine, gpus in job.spots:
                    rack = rack_of[machine]
                    by_machine[machine] = by_machine[machine] - gpus
                    by_rack[rack] = by_rack[rack] - gpus

    def _ripened(self, ripe: _Ripe, job: JobState) -> None:
        """Add a job's GPUs to those of a class."""
        by_machine, by_rack, rack_of = ripe.by_machine, ripe.by_rack, self._free.rack_of
        ripe.total += job.gpus
        for machine, gpus in job.spots:
            rack = rack_of[machine]
            by_machine[machine] = by_machine[machine] + gpus
            by_rack[rack] = by_rack[rack] + gpus

    def _ripen(self, now_s: float) -> None:
        """Let jobs ripen whose time has come."""
        classes, policy, times = self._classes, self._policy, self._times
        for _, _, job, _, number in times.due(now_s):
            self._changes += 1
            if not number:
                self._ripe[job] = None
                for machine, gpus in job.spots:
                    self._on[machine][job] = gpus
            at_s = now_s
            while at_s <= now_s:
                self._ripened(classes[number], job)
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
                victims = _smallest(gpus - self._free_in(tier, domain), members)
                if victims is not None:
                    waiting.victims_considered = tuple(considered[:8])
                    return Eviction(victims, self._placement(tier, domain, gpus, victims))
        waiting.victims_considered = tuple(considered[:8])
        return None

    def _free_in(self, tier: int, domain: int) -> int:
        """GPUs that are free in a domain."""
        if tier == NETWORK:
            return self._free.total
        return self._free.by_machine[domain] if tier == MACHINE else self._free.by_rack[domain]

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
        inside: dict[JobState, int]
        if tier == MACHINE:
            inside = self._on[domain]
        elif tier == NETWORK:
            inside = {job: job.gpus for job in self._ripe}
        else:
            inside = {}
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
        freed: dict[int, int] = {}
        for job in victims:
            for machine, count in job.spots:
                freed[machine] = freed.get(machine, 0) + count
        racks = [domain]
        if tier == NETWORK:
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
