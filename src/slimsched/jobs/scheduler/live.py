"""A job scheduler on a real cluster: pure as ever, but it can start afresh and it never refuses an event.

Machines of a real cluster come and go, and a driver may lose track of it. It then feeds `Rebuilt` with the
machines there are, and after it every job there is. The policy keeps what it has learned. A job that can
never run here gets a `RefuseJob` where a simulation would stop with an error.
"""

from collections.abc import Mapping

from slimsched.core.config import ConfigError, DataError
from slimsched.jobs.domain import Fabric, Topology, TrainingModel
from slimsched.jobs.scheduler.messages import JobSubmitted, LiveCommand, LiveEvent, Rebuilt, RefuseJob
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.scheduler import JobScheduler, Split
from slimsched.jobs.scheduler.waiting import DemandError


class LiveScheduler:
    """Job schedulers one after the other, with one policy; `current` is None before the first Rebuilt."""

    def __init__(
        self,
        *,
        policy: Policy,
        fabric: Fabric,
        models: Mapping[str, TrainingModel],
        quotas: Mapping[str, int],
        split: Split,
        cluster: str,
    ) -> None:
        if policy.resizes:
            raise ConfigError(
                "this policy changes the number of GPUs of running jobs, which works in simulations only; "
                "name another, such as dally"
            )
        self.current: JobScheduler | None = None
        self._policy = policy
        self._fabric = fabric
        self._models = models
        self._quotas = quotas
        self._split = split
        self._cluster = cluster

    def handle(self, event: LiveEvent, *, now_s: float) -> list[LiveCommand]:
        """Take one event into account and return what must now be done."""
        if isinstance(event, Rebuilt):
            self.current = self._fresh(event)
            return []
        if self.current is None:
            raise DataError(f"a live run begins with Rebuilt, not with {type(event).__name__}")
        try:
            return [*self.current.handle(event, now_s=now_s)]
        except DemandError as error:
            if not isinstance(event, JobSubmitted):
                raise
            return [RefuseJob(job_id=event.job.id, reason=str(error))]

    def _fresh(self, event: Rebuilt) -> JobScheduler:
        topology = Topology(event.machines, name=self._cluster)
        return JobScheduler(
            topology=topology,
            policy=self._policy,
            sensitivity=Sensitivity(topology=topology, fabric=self._fabric, models=self._models),
            quotas=self._quotas,
            split=self._split,
        )
