"""The machines of a cluster, the racks they stand in and the links between them."""

from collections.abc import Iterable
from itertools import islice
from typing import Self

from msgspec import Struct

from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.kernel.errors import ConfigError
from slimsched.kernel.quantity import Count

MOST_MACHINES = 100_000


class Machine(Struct, frozen=True, kw_only=True):
    """One machine: its name, its rack and its GPUs."""

    name: str
    rack: str
    gpus: Count


class Topology:
    """Machines in racks. Machines and racks keep the order they were given in."""

    def __init__(self, machines: Iterable[Machine], *, name: str = "cluster") -> None:
        self.name = name
        self.machines = tuple(islice(machines, MOST_MACHINES + 1))
        if len(self.machines) > MOST_MACHINES:
            raise ConfigError(f"cluster '{name}' has more than {MOST_MACHINES:,} machines; give fewer")
        if not self.machines:
            raise ConfigError(f"cluster '{name}' has no machines; give at least one")
        self.index = {machine.name: i for i, machine in enumerate(self.machines)}
        if len(self.index) != len(self.machines):
            raise ConfigError(f"cluster '{name}' names a machine twice; give each its own name")
        for machine in self.machines:
            if machine.gpus < 1:
                raise ConfigError(
                    f"machine '{machine.name}' has {machine.gpus} GPUs; give at least 1 or leave it out"
                )
        self.racks = tuple(dict.fromkeys(machine.rack for machine in self.machines))
        rack_index = {rack: i for i, rack in enumerate(self.racks)}
        self.rack_of = tuple(rack_index[machine.rack] for machine in self.machines)
        self.rack_of_name = {m.name: r for m, r in zip(self.machines, self.rack_of, strict=True)}
        self.gpus = sum(machine.gpus for machine in self.machines)
        self.largest_machine = max(machine.gpus for machine in self.machines)
        in_rack = [0] * len(self.racks)
        for machine, rack in zip(self.machines, self.rack_of, strict=True):
            in_rack[rack] += machine.gpus
        self.rack_gpus = tuple(in_rack)
        self.largest_rack = max(in_rack)

    @classmethod
    def grid(cls, *, racks: int, machines_per_rack: int, gpus_per_machine: int, name: str = "grid") -> Self:
        """Equal racks of equal machines, named r0m0, r0m1, …"""
        return cls(
            (
                Machine(name=f"r{rack}m{machine}", rack=f"r{rack}", gpus=gpus_per_machine)
                for rack in range(racks)
                for machine in range(machines_per_rack)
            ),
            name=name,
        )

    @classmethod
    def pool(cls, gpus: int) -> Self:
        """A flat pool: GPUs are counted, not placed (one machine holds them all)."""
        return cls([Machine(name="pool", rack="pool", gpus=gpus)], name=f"pool of {gpus}")

    def floor(self, gpus: int) -> Tier:
        """The closest tier a gang of this size can ever reach."""
        if gpus <= self.largest_machine:
            return Tier.MACHINE
        return Tier.RACK if gpus <= self.largest_rack else Tier.NETWORK

    def tier(self, placement: Placement) -> Tier:
        """How far a placement is spread."""
        if len(placement) == 1:
            return Tier.MACHINE
        rack_of = self.rack_of_name
        first = rack_of[placement[0][0]]
        return Tier.RACK if all(rack_of[name] == first for name, _ in placement) else Tier.NETWORK
