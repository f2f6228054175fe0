"""What a scheduler is made of: the part of a run that its log must keep, so that it can be replayed."""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from slimsched import __version__
from slimsched.jobs.domain.fabric import Fabric
from slimsched.jobs.domain.topology import Machine, Topology
from slimsched.jobs.domain.training_model import TrainingModel
from slimsched.jobs.execution.policies import POLICIES
from slimsched.jobs.scheduler.gpus import split
from slimsched.jobs.scheduler.live import LiveScheduler
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.kernel.log import Header
from slimsched.kernel.quantity import Whole


class SchedulerSetting(Struct, frozen=True, kw_only=True):
    """A policy by name, a cluster, its network, the known models and the quotas of tenants.

    On Slurm, `machines` is empty: which machines there are is told by the events.
    """

    engine: Literal["simulated", "slurm"]
    policy: str
    cluster: str
    machines: tuple[Machine, ...] = ()
    fabric: Fabric
    models: dict[str, TrainingModel]
    quotas: dict[str, Whole] = {}

    def header(self) -> Header:
        """Return the first line of the log of a run with this setting."""
        setting: dict[str, Any] = msgspec.to_builtins(self)
        return Header(slim=__version__, kind="jobs", setting=setting)

    def sensitivity(self) -> Sensitivity:
        """Return what the network means to each model on this cluster."""
        topology = Topology(self.machines, name=self.cluster)
        return Sensitivity(topology=topology, fabric=self.fabric, models=self.models)

    def scheduler(self, sensitivity: Sensitivity | None = None, policy: Policy | None = None) -> JobScheduler:
        """Make the scheduler of a simulation; `policy` takes the place of the one that is named."""
        known = sensitivity or self.sensitivity()
        return JobScheduler(
            topology=known.topology,
            policy=policy or POLICIES.make(self.policy),
            sensitivity=known,
            quotas=self.quotas,
        )

    def live_scheduler(self) -> LiveScheduler:
        """Make the scheduler of a Slurm cluster."""
        return LiveScheduler(
            policy=POLICIES.make(self.policy),
            fabric=self.fabric,
            models=self.models,
            quotas=self.quotas,
            split=split,
            cluster=self.cluster,
        )
