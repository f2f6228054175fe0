"""How much a job suffers from each tier: t_iter(tier) / t_iter(floor), the network to itself."""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from slimsched.jobs.domain.fabric import Fabric
from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.domain.training_model import NO_NETWORK, TrainingModel
from slimsched.jobs.scheduling.collective import CommTimes, Shape, comm_times, shape_of


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
        self._ideal: dict[tuple[str, int], float] = {}
        self._comm: dict[tuple[str, Shape], CommTimes] = {}

    @cached_property
    def machines_per_rack(self) -> int:
        """Machines of the fullest rack."""
        counts = [0] * len(self.topology.racks)
        for rack in self.topology.rack_of:
            counts[rack] += 1
        return max(counts)

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
        ideal = self._ideal.get(key)
        if ideal is None:
            ideal = self._iteration_s(job, gpus, self.topology.floor(gpus))
            self._ideal[key] = ideal
        return ideal

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
