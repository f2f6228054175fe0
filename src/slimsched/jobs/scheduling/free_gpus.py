"""Which GPUs are free, indexed so that the best fit is found without looking at every machine.

A machine is a bit. `_with[c]` is the set of machines with exactly c free GPUs, and bit c of `_counts`
says that this set is not empty: the smallest sufficient count is then one shift and one mask away.
"""

from collections.abc import Collection
from typing import Final

from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.domain.topology import Topology

MACHINE: Final = Tier.MACHINE
RACK: Final = Tier.RACK
NETWORK: Final = Tier.NETWORK

Spots = list[tuple[int, int]]
"""A placement by machine number: (machine, GPUs there)."""


class FreeGpus:
    """Free GPUs by machine, by rack and in all; a machine that is down has none.

    `crossing` counts the gangs on each rack's uplink, and `changes` how often a machine has changed.
    """

    def __init__(self, topology: Topology, *, calm: bool = False) -> None:
        """With `calm`, gangs that must cross racks keep away from uplinks that others use."""
        self.topology = topology
        self.calm = calm
        self.crossing = [0] * len(topology.racks)
        self.names = [machine.name for machine in topology.machines]
        self.rack_of = list(topology.rack_of)
        self.index = topology.index
        self.by_machine = [machine.gpus for machine in topology.machines]
        self._gpus = [machine.gpus for machine in topology.machines]
        self.by_rack = list(topology.rack_gpus)
        self.total = topology.gpus
        self.changes = 0
        self._counts = 0
        self._with = [0] * (topology.largest_machine + 1)
        self._racks_with = [[0] * (topology.largest_machine + 1) for _ in topology.racks]
        self._in_rack: list[list[str]] = [[] for _ in topology.racks]
        """Names of the machines of each rack, by bit."""
        self._bit = [1 << i for i in range(len(self.by_machine))]
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

    def tier(self, spots: Spots) -> Tier:
        """How far apart these GPUs are."""
        if len(spots) == 1:
            return MACHINE
        rack_of = self.rack_of
        first = rack_of[spots[0][0]]
        for machine, _ in spots:
            if rack_of[machine] != first:
                return NETWORK
        return RACK

    def take(self, placement: Placement) -> None:
        """Take these GPUs."""
        for name, gpus in placement:
            self._change(self.index[name], -gpus)

    def give(self, placement: Placement) -> None:
        """Give these GPUs back."""
        for name, gpus in placement:
            self._change(self.index[name], gpus)

    def take_at(self, spots: Spots) -> None:
        """Take these GPUs."""
        for machine, gpus in spots:
            self._change(machine, -gpus)

    def give_at(self, spots: Spots) -> None:
        """Give these GPUs back."""
        for machine, gpus in spots:
            self._change(machine, gpus)

    def _change(self, machine: int, by: int) -> None:
        before = self.by_machine[machine]
        after = before + by
        if not 0 <= after <= self._gpus[machine]:
            raise AssertionError(f"{self.names[machine]} would have {after} GPUs free")
        self.by_machine[machine] = after
        self.changes += 1
        rack = self.rack_of[machine]
        # list[i] = list[i] + …, not +=, is what the compiler turns into arithmetic
        self.by_rack[rack] = self.by_rack[rack] + by
        self.total += by
        bit = self._bit_in_rack[machine]
        in_rack = self._racks_with[rack]
        in_rack[before] = in_rack[before] ^ bit
        in_rack[after] = in_rack[after] | bit
        bit = self._bit[machine]
        with_ = self._with
        with_[after] = with_[after] | bit
        left = with_[before] ^ bit
        with_[before] = left
        if left:
            self._counts |= 1 << after
        else:
            self._counts = (self._counts | 1 << after) ^ 1 << before

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
            if self.racks_needed(quiet, gpus) == self.racks_needed(order, gpus):
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

    def has_quiet(self, gpus: int, racks: int, *, without: Placement, crossed: list[int]) -> bool:
        """Whether that many quiet racks would hold a gang if it were gone from where it runs now."""
        room = [0 if crossing else free for crossing, free in zip(self.crossing, self.by_rack, strict=True)]
        for rack in crossed:
            if self.crossing[rack] == 1:
                room[rack] = self.by_rack[rack]
        for name, count in without:
            rack = self.rack_of[self.index[name]]
            if self.crossing[rack] == 1:
                room[rack] += count
        room.sort(reverse=True)
        return sum(room[:racks]) >= gpus

    def find_quiet(self, gpus: int, racks: int) -> Placement | None:
        """Find a placement on a limited number of racks whose uplinks nobody uses, or None."""
        order = [rack for rack in range(len(self.by_rack)) if not self.crossing[rack]]
        order.sort(key=lambda rack: (-self.by_rack[rack], rack))
        needed = self.racks_needed(order, gpus)
        return self._fill(order, gpus) if needed is not None and needed <= racks else None

    def racks_needed(self, order: list[int], gpus: int) -> int | None:
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
                if machines and not self._smaller_fits(with_, count, gpus):
                    bit = machines & -machines
                    return (*parts, (names[bit.bit_length() - 1], gpus))
        return tuple(parts)

    @staticmethod
    def _smaller_fits(with_: list[int], count: int, gpus: int) -> bool:
        """Whether a machine with fewer free GPUs than `count` holds the rest as well."""
        return any(with_[smaller] for smaller in range(gpus, count))
