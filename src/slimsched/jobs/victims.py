"""Whom to stop for a waiting gang: topology first, the smallest set, and only if the gang then fits."""

from collections.abc import Iterable

from slimsched.domain.placement import Placement, Tier
from slimsched.jobs.free_gpus import FreeGpus
from slimsched.jobs.job_state import JobState


class Eviction:
    """Victims, and the placement the waiting gang gets once they are gone."""

    __slots__ = ("placement", "victims")

    def __init__(self, victims: list[JobState], placement: Placement) -> None:
        self.victims = victims
        self.placement = placement


def find_victims(
    waiting: JobState, candidates: list[JobState], free: FreeGpus, *, topology_first: bool = True
) -> Eviction | None:
    """The cheapest set of candidates (given in the order they should go) that frees a usable domain.

    Looks for one machine, then one rack, then the cluster, never beyond the waiting job's allowed tier.
    A set's cost is the GPUs it stops beyond those the gang needs.
    """
    gpus = waiting.gpus
    if free.total + sum(job.gpus for job in candidates) < gpus:
        return None
    if not topology_first:
        tiers: Iterable[Tier] = (waiting.allowed,)
    else:
        tiers = range(waiting.floor, waiting.allowed + 1)  # type: ignore[assignment]
    for tier in tiers:
        eviction = _in_domains(tier, gpus, candidates, free)
        if eviction is not None:
            return eviction
    return None


def _in_domains(tier: int, gpus: int, candidates: list[JobState], free: FreeGpus) -> Eviction | None:
    """The cheapest eviction within one domain of this tier."""
    index, rack_of = free.index, free.rack_of
    members: dict[int, list[tuple[int, JobState]]] = {}
    for job in candidates:
        inside: dict[int, int] = {}
        for name, count in job.placement:
            machine = index[name]
            domain = machine if tier == Tier.MACHINE else rack_of[machine] if tier == Tier.RACK else 0
            inside[domain] = inside.get(domain, 0) + count
        for domain, count in inside.items():
            members.setdefault(domain, []).append((count, job))
    best: tuple[int, int, list[JobState]] | None = None
    for domain, jobs in members.items():
        if tier == Tier.MACHINE:
            have = free.by_machine[domain]
        else:
            have = free.by_rack[domain] if tier == Tier.RACK else free.total
        victims = _smallest(gpus - have, jobs)
        if victims is not None:
            cost = sum(job.gpus for job in victims)
            if best is None or (cost, domain) < best[:2]:
                best = (cost, domain, victims)
    if best is None:
        return None
    _, domain, victims = best
    return Eviction(victims, _placement(tier, domain, gpus, victims, free))


def _smallest(needed: int, jobs: list[tuple[int, JobState]]) -> list[JobState] | None:
    """First come first gone until enough is free, then spare whom we need not stop after all."""
    chosen: list[tuple[int, JobState]] = []
    for count, job in jobs:
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


def _placement(tier: int, domain: int, gpus: int, victims: list[JobState], free: FreeGpus) -> Placement:
    """Where the gang goes once the victims are gone: fullest machines first."""
    freed: dict[int, int] = {}
    for job in victims:
        for name, count in job.placement:
            machine = free.index[name]
            freed[machine] = freed.get(machine, 0) + count
    if tier == Tier.MACHINE:
        return ((free.names[domain], gpus),)
    machines = [
        (free.by_machine[machine] + freed.get(machine, 0), -machine)
        for machine in range(len(free.names))
        if tier == Tier.NETWORK or free.rack_of[machine] == domain
    ]
    if tier == Tier.NETWORK:
        room = [0] * len(free.by_rack)
        for count, machine in machines:
            room[free.rack_of[-machine]] += count
        order = sorted(
            machines, key=lambda m: (-room[free.rack_of[-m[1]]], free.rack_of[-m[1]], -m[0], -m[1])
        )
    else:
        order = sorted(machines, reverse=True)
    parts: list[tuple[str, int]] = []
    for count, machine in order:
        take = min(count, gpus)
        if take:
            parts.append((free.names[-machine], take))
            gpus -= take
        if not gpus:
            break
    return tuple(parts)
