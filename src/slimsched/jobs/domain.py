"""What jobs and clusters are: jobs, the models they train, machines in racks, the network, and placements."""

import re
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from itertools import islice
from typing import Self

from msgspec import Struct

from slimsched.core import config
from slimsched.core.config import ConfigError, UnknownNameError

# -- The network of a training cluster: bandwidth inside a machine, out of a machine and out of a rack.

GB = 1e9


class Fabric(Struct, frozen=True, kw_only=True):
    """Bandwidths in bytes per second and one-way direction, as a ring all-reduce sees them.

    `nic_bytes_per_s` is one network card; `rails` says whether every GPU has its own card.
    `uplink_bytes_per_s` is what one machine's worth of uplink offers: a rack of M machines has M of them.
    `background` is the share of every uplink that other traffic takes.
    `kappa` is how much slower a real ring is than the bandwidth alone says.
    """

    name: str
    machine_bytes_per_s: config.PositiveAmount = 300 * GB
    nic_bytes_per_s: config.PositiveAmount
    rails: bool = False
    uplink_bytes_per_s: config.PositiveAmount
    background: config.PartialShare = 0.0
    latency_s: config.Seconds = 5e-6
    kappa: config.Factor = 1.05

    def rack_uplink_bytes_per_s(self, machines: int) -> float:
        """Return what other traffic leaves of the uplink of a rack with `machines` machines."""
        return machines * self.uplink_bytes_per_s * (1.0 - self.background)


FABRICS = {
    fabric.name: fabric
    for fabric in (
        # 400 Gb/s per GPU and full bisection: crossing racks costs next to nothing
        Fabric(name="fast", nic_bytes_per_s=50 * GB, rails=True, uplink_bytes_per_s=400 * GB),
        # 100 Gb/s per machine, racks oversubscribed 4:1
        Fabric(name="oversubscribed", nic_bytes_per_s=12.5 * GB, uplink_bytes_per_s=3.125 * GB),
        # the same, with seven eighths of every uplink taken by other traffic
        Fabric(name="congested", nic_bytes_per_s=12.5 * GB, uplink_bytes_per_s=3.125 * GB, background=0.875),
    )
}


def fabric_named(name: str) -> Fabric:
    """Look a network setting up."""
    if name not in FABRICS:
        raise UnknownNameError("network", name, tuple(FABRICS))
    return FABRICS[name]


# -- Where a gang runs: how many GPUs on which machines, and how close together they are.

Placement = tuple[tuple[str, config.Count], ...]
"""(machine name, GPUs there), one entry per machine."""


class Tier(IntEnum):
    """How far a gang is spread; smaller is closer."""

    MACHINE = 0
    RACK = 1
    NETWORK = 2


def gpus_in(placement: Placement) -> int:
    """GPUs a placement holds in all."""
    return sum(gpus for _, gpus in placement)


def where(placement: Placement) -> str:
    """Put a placement into words."""
    return ", ".join(f"{name}×{gpus}" for name, gpus in placement)


# -- GPUs in Slurm's texts: `gpu:a100:4(S:0-1)`, `gres/gpu=8`, `cpu=8,gres/gpu=4,gres/gpu:a100=4`.

_GPUS = re.compile(r"\bgpu(?P<kind>[:/][A-Za-z][^:=,()]*)?[:=](?P<count>\d+)")


def gpu_count(text: object) -> int:
    """Return the GPUs in all; where Slurm names the total and the kinds besides, the total counts."""
    named = [(one["kind"], int(one["count"])) for one in _GPUS.finditer(str(text or ""))]
    totals = [count for kind, count in named if not kind]
    return sum(totals or [count for _, count in named])


# -- What a training job computes and sends in one iteration, and how it goes with more or fewer GPUs.

Scaling = tuple[tuple[config.Count, config.PositiveAmount], ...]
"""(GPUs, pace on that many, together and with the network to themselves); ascending, the pace on one is 1."""


class TrainingModel(Struct, frozen=True, kw_only=True):
    """Seconds of computing an iteration takes, and the gradient bytes that computing does not hide.

    `scaling` is there for models whose jobs may change their number of GPUs.
    """

    name: str
    compute_s: config.PositiveSeconds
    exposed_bytes: config.Amount
    source: str
    scaling: Scaling = ()

    def sizes(self, asked: int) -> Scaling:
        """Return the sizes a job may have that asks for N GPUs, each with its pace relative to those.

        A job keeps what it asks for where nobody has measured the model's pace on that many.
        """
        if not self.scaling or not self.scaling[0][0] <= asked <= self.scaling[-1][0]:
            return ((asked, 1.0),)
        at_asked = self.pace(asked)
        return tuple((gpus, pace / at_asked) for gpus, pace in self.scaling)

    def pace(self, gpus: int) -> float:
        """Return the pace on `gpus` GPUs, between two measured sizes by interpolation."""
        below = max(pair for pair in self.scaling if pair[0] <= gpus)
        above = min(pair for pair in self.scaling if pair[0] >= gpus)
        if above[0] == below[0]:
            return below[1]
        return below[1] + (above[1] - below[1]) * (gpus - below[0]) / (above[0] - below[0])


NO_NETWORK = TrainingModel(name="", compute_s=1.0, exposed_bytes=0.0, source="a job that never communicates")


# -- A training job: a gang of GPUs that iterates on a model until its work is done.


class Job(Struct, frozen=True, kw_only=True, gc=False):
    """One training job; it runs on all of its GPUs at once or not at all.

    `service_s` is its work: the seconds it would run on its most consolidated placement with the
    network to itself. Only the simulator and the policies that are told durations read it (a live
    cluster leaves it at 0). `limit_s` is the time limit the user gave, if any; backfill relies on it.
    `machines` is how many machines the user asked for, in equal shares; 0 leaves that to the scheduler. Only
    policies that stand for a scheduler that must obey follow it.
    """

    id: str
    arrival_s: config.Finite
    gpus: config.Count
    service_s: config.Seconds = 0.0
    model: str = ""
    tenant: str = ""
    limit_s: config.Seconds | None = None
    machines: config.CountOrZero = 0


# -- The machines of a cluster, the racks they stand in and the links between them.

MOST_MACHINES = 100_000


class Machine(Struct, frozen=True, kw_only=True):
    """One machine: its name, its rack and its GPUs."""

    name: str
    rack: str
    gpus: config.Count


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
        in_rack = Counter[str]()
        for machine in self.machines:
            in_rack[machine.rack] += machine.gpus
        self.rack_gpus = tuple(in_rack[rack] for rack in self.racks)
        self.largest_rack = max(self.rack_gpus)

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
