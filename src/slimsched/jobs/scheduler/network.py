"""How much a slow network costs a job: how long an iteration takes at each tier, the network to itself."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from slimsched.jobs.domain import NO_NETWORK, Fabric, Job, Placement, Tier, Topology, TrainingModel

# -- How long a gang's all-reduce takes: a ring in each dimension (machine, rack, network), pipelined.
#
#     t_comm = κ · max over dimensions d of 2 (n_d − 1) / n_d · S_d / B_d  +  Σ 2 (n_d − 1) · latency
#
# Ours, after the ring all-reduce of the literature; tests hold it within 15 % of ASTRA-sim's figures.


class Shape(NamedTuple):
    """How a gang is spread: GPUs on its fullest machine, machines in its fullest rack, racks."""

    gpus: int
    machines: int = 1
    racks: int = 1


class CommTimes(NamedTuple):
    """Seconds one all-reduce of a gang occupies each kind of link, nobody else using it."""

    machine_s: float
    nic_s: float
    uplink_s: float
    latency_s: float

    def total_s(self) -> float:
        """Seconds of one all-reduce."""
        return max(self.machine_s, self.nic_s, self.uplink_s) + self.latency_s


def comm_times(size_bytes: float, shape: Shape, fabric: Fabric, *, machines_per_rack: int) -> CommTimes:
    """Seconds on each kind of link for a gang of this shape."""
    n1, n2, n3 = shape
    k = fabric.kappa
    around = [2 * (n - 1) / n for n in shape]
    # with a card per GPU each rail carries the shard its GPU holds; else one card carries all of it
    outward = size_bytes / n1 if fabric.rails else size_bytes
    in_rack_s = around[1] * outward / fabric.nic_bytes_per_s
    out_of_rack_s = around[2] * outward / n2 / fabric.nic_bytes_per_s
    uplink_s = around[2] * size_bytes / fabric.rack_uplink_bytes_per_s(machines_per_rack)
    return CommTimes(
        machine_s=k * around[0] * size_bytes / fabric.machine_bytes_per_s,
        nic_s=k * max(in_rack_s, out_of_rack_s),
        uplink_s=k * uplink_s,
        latency_s=2 * (n1 + n2 + n3 - 3) * fabric.latency_s,
    )


def shape_of(placement: Placement, topology: Topology) -> Shape:
    """The shape of a placement."""
    if len(placement) == 1:
        return Shape(placement[0][1])
    rack_of = topology.rack_of_name
    machines = Counter([rack_of[name] for name, _ in placement])
    return Shape(max(gpus for _, gpus in placement), max(machines.values()), len(machines))


class Traits(NamedTuple):
    """What the network means to a kind of job: its slowdown by tier (1.0 at its floor and below), and the
    share of its time it would communicate if spread over racks."""

    slow: tuple[float, float, float]
    network_duty: float


class Sensitivity:
    """Iteration times of the known models on one cluster; models it does not know never communicate."""

    def __init__(
        self, *, topology: Topology, fabric: Fabric, models: Mapping[str, TrainingModel] | None = None
    ) -> None:
        self.topology = topology
        self.fabric = fabric
        self.models = dict(models or {})
        self._traits: dict[tuple[str, int], Traits] = {}
        self._ideal_s: dict[tuple[str, int], float] = {}
        self._comm: dict[tuple[str, Shape], CommTimes] = {}

    @cached_property
    def machines_per_rack(self) -> int:
        """Machines of the fullest rack."""
        return max(Counter(self.topology.rack_of).values())

    def model(self, job: Job) -> TrainingModel:
        """The model a job trains."""
        return self.models.get(job.model, NO_NETWORK)

    def comm(self, job: Job, shape: Shape) -> CommTimes:
        """Seconds an iteration of this job occupies each kind of link."""
        key = (job.model, shape)
        times = self._comm.get(key)
        if times is None:
            size = self.model(job).exposed_bytes
            times = comm_times(size, shape, self.fabric, machines_per_rack=self.machines_per_rack)
            self._comm[key] = times
        return times

    def comm_at(self, job: Job, placement: Placement) -> CommTimes:
        """Seconds an iteration occupies each kind of link at this placement."""
        return self.comm(job, shape_of(placement, self.topology))

    def ideal_iteration_s(self, job: Job, gpus: int | None = None) -> float:
        """Seconds of an iteration where the gang is closest together: of what it asks for, or of `gpus`."""
        gpus = gpus or job.gpus
        key = (job.model, gpus)
        ideal_s = self._ideal_s.get(key)
        if ideal_s is None:
            ideal_s = self._ideal_s[key] = self._iteration_s(job, gpus, self.topology.floor(gpus))
        return ideal_s

    def pace(self, job: Job, gpus: int) -> float:
        """How fast a job goes on this number of GPUs, relative to those it asks for."""
        return 1.0 if gpus == job.gpus else dict(self.model(job).sizes(job.gpus))[gpus]

    def traits(self, job: Job, gpus: int | None = None) -> Traits:
        """How much slower this job iterates at each tier than at its floor."""
        gpus = gpus or job.gpus
        key = (job.model, gpus)
        known = self._traits.get(key)
        if known is None:
            ideal = self.ideal_iteration_s(job, gpus)
            values = [max(1.0, self._iteration_s(job, gpus, tier) / ideal) for tier in Tier]
            slow = (values[0], max(values[0], values[1]), max(values))
            spread_s = self._iteration_s(job, gpus, Tier.NETWORK)
            known = self._traits[key] = Traits(slow, 1.0 - self.model(job).compute_s / spread_s)
        return known

    def _iteration_s(self, job: Job, gpus: int, tier: Tier) -> float:
        shape = self._typical_shape(gpus, max(tier, self.topology.floor(gpus)))
        return self.model(job).compute_s + self.comm(job, shape).total_s()

    def _typical_shape(self, gpus: int, tier: Tier) -> Shape:
        """The least a gang must be spread to be at this tier."""
        if tier == Tier.MACHINE or gpus == 1:
            return Shape(gpus)
        machines = max(2, -(-gpus // self.topology.largest_machine))
        per_machine = -(-gpus // machines)
        if tier == Tier.RACK:
            return Shape(per_machine, machines)
        racks = max(2, -(-gpus // self.topology.largest_rack))
        return Shape(per_machine, -(-machines // racks), racks)
