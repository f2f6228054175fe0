"""The GPUs of a cluster: which are free, which are set aside for a gang, and when they will be free.

Free GPUs are indexed so that the best fit is found without looking at every machine. A machine is a bit:
`_with[c]` is the set of machines with exactly c free GPUs, and bit c of `_counts` says that this set is not
empty. The smallest sufficient count is then one shift and one mask away.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Final, NamedTuple

from slimsched.jobs.domain import Placement, Tier, Topology, gpus_in
from slimsched.jobs.scheduler.waiting import JobState

MACHINE: Final = Tier.MACHINE
RACK: Final = Tier.RACK
NETWORK: Final = Tier.NETWORK

Spots = list[tuple[int, int]]
"""A placement by machine number: (machine, GPUs there)."""


class FreeGpus:
    """Free GPUs by machine, by rack and in all; a machine that is down has none."""

    def __init__(self, topology: Topology, *, calm: bool = False) -> None:
        """With `calm`, gangs that must cross racks keep away from uplinks that others use."""
        racks, most = len(topology.racks), topology.largest_machine
        self.calm = calm
        self.names = [machine.name for machine in topology.machines]
        self.index = topology.index  # the number of each machine by its name
        self.rack_of = list(topology.rack_of)
        self.capacity = [machine.gpus for machine in topology.machines]  # GPUs of each machine, free or not
        self.by_machine = list(self.capacity)
        self.by_rack = list(topology.rack_gpus)
        self.total = topology.gpus
        self.crossing = [0] * racks  # gangs on the uplink of each rack
        self.changes = 0  # how often a machine has changed
        self._counts = 0
        self._with = [0] * (most + 1)
        self._racks_with = [[0] * (most + 1) for _ in range(racks)]  # the same in each rack, with own bits
        self._in_rack: list[list[str]] = [[] for _ in range(racks)]  # names of machines, by these bits
        self._bit = [1 << i for i in range(len(self.names))]
        self._bit_in_rack: list[int] = []
        for i, gpus in enumerate(self.by_machine):
            rack = self.rack_of[i]
            self._bit_in_rack.append(1 << len(self._in_rack[rack]))
            self._in_rack[rack].append(self.names[i])
            self._with[gpus] |= self._bit[i]
            self._racks_with[rack][gpus] |= self._bit_in_rack[i]
            self._counts |= 1 << gpus

    def has(self, gpus: int, tier: Tier) -> bool:
        """Whether a domain of this tier has that many GPUs free."""
        if gpus > self.total:
            return False
        if tier == MACHINE:
            return bool(self._counts >> gpus)
        if tier == NETWORK:
            return True
        return any(free >= gpus for free in self.by_rack)

    def spots(self, placement: Placement) -> Spots:
        """Return a placement by machine number."""
        index = self.index
        return [(index[name], gpus) for name, gpus in placement]

    def take(self, placement: Placement) -> None:
        """Take these GPUs."""
        self.take_at(self.spots(placement))

    def give(self, placement: Placement) -> None:
        """Give these GPUs back."""
        self.give_at(self.spots(placement))

    def take_at(self, spots: Spots) -> None:
        """Take these GPUs: at least one of each machine that is named."""
        for machine, gpus in spots:
            self._change(machine, -gpus)

    def give_at(self, spots: Spots) -> None:
        """Give these GPUs back: at least one of each machine that is named."""
        for machine, gpus in spots:
            self._change(machine, gpus)

    def _change(self, machine: int, by: int) -> None:
        before = self.by_machine[machine]
        after = before + by
        if not 0 <= after <= self.capacity[machine]:
            raise AssertionError(
                f"{self.names[machine]} would have {after} of its {self.capacity[machine]} GPUs free"
            )
        self.by_machine[machine] = after
        self.changes += 1
        rack = self.rack_of[machine]
        self.by_rack[rack] += by
        self.total += by
        bit = self._bit_in_rack[machine]
        in_rack = self._racks_with[rack]
        in_rack[before] ^= bit
        in_rack[after] |= bit
        bit = self._bit[machine]
        with_ = self._with
        with_[before] ^= bit
        with_[after] |= bit
        self._counts |= 1 << after
        if not with_[before]:
            self._counts ^= 1 << before

    def find(self, gpus: int, allowed: Tier) -> Placement | None:
        """The most consolidated placement of a gang no farther spread than allowed, or None."""
        enough = self._counts >> gpus
        if enough:
            # the machine with the fewest free GPUs that still suffice
            machines = self._with[gpus + (enough & -enough).bit_length() - 1]
            return ((self.names[(machines & -machines).bit_length() - 1], gpus),)
        if allowed == MACHINE or gpus > self.total:
            return None
        rack = self._best_rack(gpus)
        if rack is not None:
            return self._fill([rack], gpus)
        if allowed == RACK:
            return None
        order = sorted(range(len(self.by_rack)), key=lambda rack: (-self.by_rack[rack], rack))
        if self.calm:
            quiet = [rack for rack in order if not self.crossing[rack]]
            if self._racks_needed(quiet, gpus) == self._racks_needed(order, gpus):
                order = quiet
        return self._fill(order, gpus)

    def find_shares(self, gpus: int, machines: int, *, without: Collection[int] = ()) -> Placement | None:
        """Find equal shares on N machines, in one rack if they are there; unequal ones go anywhere."""
        share, rest = divmod(gpus, machines)
        if rest:
            return self.find(gpus, Tier.NETWORK)
        if machines == 1 and not without:
            return self.find(gpus, Tier.MACHINE)
        fitting: list[list[int]] = [[] for _ in self.by_rack]
        for machine, free in enumerate(self.by_machine):
            if free >= share and machine not in without:
                fitting[self.rack_of[machine]].append(machine)
        whole = [rack for rack in fitting if len(rack) >= machines]
        chosen: list[int] = []
        for rack in [min(whole, key=len)] if whole else sorted(fitting, key=len, reverse=True):
            rack.sort(key=lambda machine: self.by_machine[machine])
            chosen += rack[: machines - len(chosen)]
        return tuple((self.names[machine], share) for machine in chosen) if len(chosen) == machines else None

    def find_quiet(self, gpus: int, crossed: list[int], *, besides: Placement) -> Placement | None:
        """Find as many racks as a gang crosses now, but with uplinks that no other uses, or None.

        The gang itself counts as gone: `besides` is what it holds of machines that are up.
        """
        alone = {rack for rack in crossed if self.crossing[rack] == 1}
        room = [
            0 if crossing and rack not in alone else free
            for rack, (crossing, free) in enumerate(zip(self.crossing, self.by_rack, strict=True))
        ]
        for name, count in besides:
            rack = self.rack_of[self.index[name]]
            if rack in alone:
                room[rack] += count
        order = sorted(range(len(room)), key=lambda rack: (-room[rack], rack))[: len(crossed)]
        if sum(room[rack] for rack in order) < gpus:
            return None
        self.give(besides)
        placement = self._fill(order, gpus)
        self.take(besides)
        return placement

    def _racks_needed(self, order: list[int], gpus: int) -> int | None:
        """How many racks in this order hold the gang, or None if they do not."""
        for count, rack in enumerate(order, start=1):
            gpus -= self.by_rack[rack]
            if gpus <= 0:
                return count
        return None

    def _best_rack(self, gpus: int) -> int | None:
        """The rack where the gang touches the fewest machines; among those, the fullest."""
        best: tuple[int, int, int] | None = None
        for rack, free in enumerate(self.by_rack):
            if free >= gpus:
                choice = (self._machines_needed(rack, gpus), free, rack)
                if best is None or choice < best:
                    best = choice
        return None if best is None else best[2]

    def _machines_needed(self, rack: int, gpus: int) -> int:
        needed = 0
        with_ = self._racks_with[rack]
        for count in range(len(with_) - 1, 0, -1):
            machines = with_[count].bit_count()
            if machines:
                if machines * count >= gpus:
                    return needed - (-gpus // count)
                needed += machines
                gpus -= machines * count
        return needed

    def _fill(self, racks: list[int], gpus: int) -> Placement:
        """Take whole machines, fullest of free GPUs first, and a best fit for the rest."""
        parts: list[tuple[str, int]] = []
        for rack in racks:
            with_, names = self._racks_with[rack], self._in_rack[rack]
            for count in range(len(with_) - 1, 0, -1):
                machines = with_[count]
                while machines and gpus >= count:
                    bit = machines & -machines
                    machines ^= bit
                    parts.append((names[bit.bit_length() - 1], count))
                    gpus -= count
                if not gpus:
                    return tuple(parts)
                if machines and not any(with_[smaller] for smaller in range(gpus, count)):
                    bit = machines & -machines
                    return (*parts, (names[bit.bit_length() - 1], gpus))
        return tuple(parts)

    def validate(self) -> None:
        """Raise an AssertionError unless all indices say the same."""
        for i, free in enumerate(self.by_machine):
            rack, name = self.rack_of[i], self.names[i]
            sets = [count for count, machines in enumerate(self._with) if machines & self._bit[i]]
            in_rack = [
                count
                for count, machines in enumerate(self._racks_with[rack])
                if machines & self._bit_in_rack[i]
            ]
            assert sets == in_rack == [free], f"{name} has {free} GPUs free, its sets say {sets}, {in_rack}"
        sums = [0] * len(self.by_rack)
        for rack, free in zip(self.rack_of, self.by_machine, strict=True):
            sums[rack] += free
        assert self.by_rack == sums, f"{sums} GPUs are free by rack, but {self.by_rack} are counted"
        assert self.total == sum(sums), f"{sum(sums)} GPUs are free, but {self.total} are counted"
        assert self._counts == sum(1 << count for count, machines in enumerate(self._with) if machines)


# -- GPUs being cleared for gangs: some are held already, the others are taken as they come free.
#
# A claim serves both preemption (its victims are leaving) and a reservation (whoever leaves first).


@dataclass(slots=True, eq=False)
class Claim:
    """The GPUs a gang will start on: by machine, those set aside and those still missing."""

    job: JobState
    placement: Placement
    held: dict[str, int]
    missing: dict[str, int]

    @property
    def missing_total(self) -> int:
        """GPUs that are missing in all."""
        return sum(self.missing.values())


class Claims:
    """Claims by job, drawing on the free GPUs."""

    def __init__(self, free: FreeGpus) -> None:
        self._free = free
        self.open: dict[str, Claim] = {}  # in the order in which they were made

    def add(self, job: JobState, placement: Placement) -> Claim:
        """Open a claim and hold what is free of it."""
        claim = Claim(job, placement, held=dict.fromkeys(dict(placement), 0), missing=dict(placement))
        self.open[job.id] = claim
        self.fill(claim, placement)
        return claim

    def missing(self, freed: Placement) -> list[Claim]:
        """The claims that miss GPUs on one of these machines, in the order they were made."""
        return [claim for claim in self.open.values() if any(claim.missing.get(name) for name, _ in freed)]

    def fill(self, claim: Claim, freed: Placement) -> None:
        """Hold what the claim misses on these machines and is free there."""
        free = self._free
        for name, _ in freed:
            gpus = min(claim.missing.get(name, 0), free.by_machine[free.index[name]])
            if gpus:
                claim.missing[name] -= gpus
                claim.held[name] += gpus
                free.take(((name, gpus),))

    def dissolve(self, job: JobState, down: set[str]) -> None:
        """Give up a job's claim, if it has one, and what it holds on machines that are up."""
        claim = self.open.pop(job.id, None)
        if claim is not None:
            up = ((name, gpus) for name, gpus in claim.held.items() if gpus and name not in down)
            self._free.give(tuple(up))

    def validate(self) -> None:
        """Raise an AssertionError unless what is held and what is missing make up each claim."""
        for claim in self.open.values():
            counted = {name: claim.held[name] + missing for name, missing in claim.missing.items()}
            assert counted == dict(claim.placement), f"{counted} held or missing: {claim.job.story()}"


# -- When and where waiting jobs will start by everybody's time limit: the plan that backfill keeps to.
#
# As Slurm plans, by its source and by what it did with 200 jobs: a job that cannot start yet reserves *whole
# machines*, from its planned start until its limit ends, and nobody behind it may use them in that time. They
# are the first ones of the rack where the fewest would do, even if they are free now. Running jobs end at
# their limits; those that end within half a minute (then one, two, four…) count as ending together, at the
# last of them. Reserved times are rounded down to whole steps of `resolution_s`.

FIRST_WINDOW_S = 30.0


class Slot(NamedTuple):
    """Machines, by index, and the time for which a job has them."""

    start_s: float
    end_s: float
    machines: tuple[int, ...]


class StartPlan:
    """What will be free when, and what is reserved; built anew for every look."""

    def __init__(
        self, now_s: float, free: FreeGpus, ends: Sequence[tuple[float, int, int]], resolution_s: float
    ) -> None:
        """`ends` are the times when running jobs must end, with their machine and their GPUs there."""
        self._now_s = now_s
        self._free = list(free.by_machine)
        self._rack_of = free.rack_of
        self._resolution_s = resolution_s
        self._later = sorted((max(end_s, now_s), machine, gpus) for end_s, machine, gpus in ends)
        self._reserved: list[Slot] = []

    def take(self, placement: Sequence[tuple[int, int]], end_s: float) -> None:
        """A job starts now on these machines and ends then at the latest."""
        for machine, gpus in placement:
            self._free[machine] -= gpus
            self._later.append((end_s, machine, gpus))
        self._later.sort()

    def reserve(self, slot: Slot) -> None:
        """Keep these machines for a job that starts later."""
        step_s = self._resolution_s
        end_s = slot.end_s if slot.end_s == inf else slot.end_s // step_s * step_s
        self._reserved.append(Slot(slot.start_s // step_s * step_s, end_s, slot.machines))

    def blocked(self, start_s: float, end_s: float) -> set[int]:
        """Return the machines that are reserved at some time in between."""
        return {
            machine
            for slot in self._reserved
            if slot.start_s <= end_s and slot.end_s > start_s
            for machine in slot.machines
        }

    def find(self, share: int, machines: int, length_s: float) -> Slot | None:
        """The first slot for a job that needs a share of GPUs on each of N machines; None is never."""
        at_s = self._now_s
        while True:
            later_s = min((slot.end_s for slot in self._reserved if slot.end_s > at_s), default=inf)
            blocked = self.blocked(at_s, at_s + length_s)
            ready = self._ready([i for i in range(len(self._free)) if i not in blocked], share, machines)
            if ready is not None:
                slot = Slot(max(at_s, ready[0]), max(at_s, ready[0]) + length_s, ready[1])
                if slot.start_s == self._now_s:
                    return slot
                if not self.blocked(slot.start_s, slot.end_s).isdisjoint(slot.machines):
                    later_s = min(later_s, slot.start_s if slot.start_s > at_s else inf)
                elif slot.start_s <= later_s:
                    return slot
            if later_s == inf:
                return None
            at_s = later_s

    def _ready(
        self, usable: Sequence[int], share: int, machines: int
    ) -> tuple[float, tuple[int, ...]] | None:
        """When enough of the usable machines have a share free, reservations aside, and which to take."""
        free = {machine: self._free[machine] for machine in usable}
        fitting = [machine for machine in usable if free[machine] >= share]
        if len(fitting) >= machines:
            return self._now_s, self._first(fitting, machines)
        ends = [end for end in self._later if end[1] in free and end[0] < inf]
        for at_s, together in _windows(ends):
            for _, machine, gpus in together:
                free[machine] += gpus
                if free[machine] >= share > free[machine] - gpus:
                    fitting.append(machine)
            if len(fitting) >= machines:
                return at_s, self._first(fitting, machines)
        return None

    def _first(self, fitting: Sequence[int], machines: int) -> tuple[int, ...]:
        """Take the first machines of the rack where the fewest fit, or of all if no rack has enough."""
        by_rack: dict[int, list[int]] = {}
        for machine in sorted(fitting):
            by_rack.setdefault(self._rack_of[machine], []).append(machine)
        enough = [inside for inside in by_rack.values() if len(inside) >= machines]
        return tuple((min(enough, key=len) if enough else sorted(fitting))[:machines])


def _windows(
    ends: Sequence[tuple[float, int, int]],
) -> list[tuple[float, list[tuple[float, int, int]]]]:
    """Group ends that are close: the first window is half a minute, each further one reaches twice as far."""
    if not ends:
        return []
    edge_s = (ends[0][0] // FIRST_WINDOW_S + 1) * FIRST_WINDOW_S

    def window(end: tuple[float, int, int]) -> int:
        number, reach_s = 0, FIRST_WINDOW_S
        while end[0] > edge_s + reach_s:
            number, reach_s = number + 1, 2 * reach_s
        return number

    groups = [list(group) for _, group in groupby(ends, key=window)]
    return [(group[-1][0], group) for group in groups]


# -- How Slurm shares a gang out over the machines it must use (see docs/decisions for what was tried).
#
# Equal shares can be pinned. Unequal ones cannot: Slurm then fills the machines one after the other in its
# own order, leaving at least one GPU for each that is still to come.


def split(job_id: str, placement: Placement, free: FreeGpus) -> Placement:
    """Equal shares where each machine has room for one; else Slurm's own filling."""
    machines = sorted(free.index[name] for name, _ in placement)
    room = [free.by_machine[machine] for machine in machines]
    left = gpus_in(placement)
    share, rest = divmod(left, len(machines))
    if not rest and min(room) >= share:
        return tuple((free.names[machine], share) for machine in machines)
    parts: list[tuple[str, int]] = []
    for i, machine in enumerate(machines):
        gpus = min(room[i], left - (len(machines) - 1 - i))
        parts.append((free.names[machine], gpus))
        left -= gpus
    return tuple(parts)


def pinned_share(placement: Placement) -> int:
    """The share all machines have in common, or 0."""
    shares = {gpus for _, gpus in placement}
    return shares.pop() if len(shares) == 1 else 0
