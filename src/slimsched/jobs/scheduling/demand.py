"""Whether a cluster can ever give a job what it asks for."""

from collections.abc import Mapping

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.topology import Topology
from slimsched.kernel.errors import SlimError


class DemandError(SlimError):
    """A job asks for what this cluster can never give."""


def check_demand(job: Job, topology: Topology, quotas: Mapping[str, int]) -> None:
    """Raise if a job can never run here."""
    if not 1 <= job.gpus <= topology.gpus:
        raise DemandError(
            f"job '{job.id}' asks for {job.gpus} GPUs, but cluster '{topology.name}' has {topology.gpus}; "
            f"drop the job or name a larger cluster"
        )
    quota = quotas.get(job.tenant)
    if quota is not None and job.gpus > quota:
        raise DemandError(
            f"job '{job.id}' asks for {job.gpus} GPUs, but tenant '{job.tenant}' has a quota of {quota}; "
            f"raise the quota or shrink the job"
        )
