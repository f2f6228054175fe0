"""What a run of jobs is made of: its policy, cluster and network, kept in the header of its log.

A log's setting is enough to make the scheduler again, so `slim replay` can check every decision. The table of
policies is here: a new one is a class and a line, an entry point, or `file.py:Class`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from slimsched import __version__
from slimsched.core.config import ConfigError, DataError, Seconds, Whole
from slimsched.core.log import Header, Replayable
from slimsched.core.plugins import PluginTable
from slimsched.jobs.domain import Fabric, Machine, Topology, TrainingModel
from slimsched.jobs.policies import baselines
from slimsched.jobs.policies.dally import Dally, MeanTuner, Tuner
from slimsched.jobs.policies.elastic import Elastic, Sia
from slimsched.jobs.scheduler.gpus import split
from slimsched.jobs.scheduler.messages import Event, JobSubmitted, LiveCommand, LiveEvent, Rebuilt, RefuseJob
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.policy import FOREVER, Policy
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.scheduler.waiting import DemandError
from slimsched.jobs.telemetry import SCHEDULER_NAME

# -- The table of job policies. A new one is a file and a line here, an entry point, or `file.py:Class`.


def manual(machine_s: Seconds, rack_s: Seconds) -> Dally:
    """Ablation of dally: the same timers for every job.

    A job takes GPUs of one machine only until `machine_s` seconds after the first offer it declined, of one
    rack only until `rack_s` seconds after it, and then any.
    """
    if machine_s > rack_s:
        raise ConfigError(
            f"machine_s is {machine_s:g} and rack_s {rack_s:g}; give machine_s not above rack_s"
        )
    return Dally(Tuner(machine_s, rack_s))


POLICIES: PluginTable[Policy] = PluginTable(
    kind="policy",
    group="slimsched.job_policies",
    result=Policy,
    builtin={
        "fifo": baselines.FifoPolicy,
        "backfill": baselines.Backfill,
        "fit-first": baselines.FitFirst,
        "srtf": baselines.Srtf,
        "srsf": baselines.Srsf,
        "tiresias": baselines.Tiresias,
        "gandiva": baselines.Gandiva,
        "max-min": baselines.MaxMin,
        "themis": baselines.Themis,
        "lwf": baselines.Lwf,
        "a-srpt": baselines.ASrpt,
        "scored": baselines.Scored,
        "sia": Sia,
        "elastic": Elastic,
        "dally": Dally,
        # ablations of dally: take any offer; hold out for ever; timers from the mean of accepted waits; fixed
        "no-wait": lambda: Dally(Tuner()),
        "fully-consolidated": lambda: Dally(Tuner(FOREVER, FOREVER)),
        "mean-tuner": lambda: Dally(MeanTuner()),
        "manual": manual,
    },
)


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
        """Make the scheduler; `policy` takes the place of the one that is named."""
        known = sensitivity or self.sensitivity()
        return JobScheduler(
            topology=known.topology,
            policy=policy or POLICIES.make(self.policy),
            sensitivity=known,
            quotas=self.quotas,
            split=split if self.engine == "slurm" else None,
        )


class LiveScheduler:
    """The job scheduler of a real cluster: it can start afresh, and refuses a job instead of failing.

    Machines of a real cluster come and go, and a driver may lose track of it. It then feeds `Rebuilt` with
    the machines there are, and after it every job there is. The policy keeps what it has learned. A job that
    can never run here gets a `RefuseJob` where a simulation would stop with an error.
    """

    def __init__(self, setting: SchedulerSetting) -> None:
        self.current: JobScheduler | None = None  # None before the first Rebuilt
        self._setting = setting
        self._policy = POLICIES.make(setting.policy)
        if self._policy.resizes:
            raise ConfigError(
                f"policy '{setting.policy}' changes the number of GPUs of running jobs, which works in "
                "simulations only; name another, such as dally"
            )

    def handle(self, event: LiveEvent, *, now_s: float) -> list[LiveCommand]:
        """Take one event into account and return what must now be done."""
        if isinstance(event, Rebuilt):
            setting = msgspec.structs.replace(self._setting, machines=event.machines)
            self.current = setting.scheduler(policy=self._policy)
            return []
        if self.current is None:
            raise DataError(f"a live run begins with Rebuilt, not with {type(event).__name__}")
        try:
            return [*self.current.handle(event, now_s=now_s)]
        except DemandError as error:
            if not isinstance(event, JobSubmitted):
                raise
            return [RefuseJob(job_id=event.job.id, reason=str(error))]


# -- The machines of a job run, made anew from its log: what `slim replay` needs.


def machines_of(setting: Mapping[str, Any]) -> Callable[[str], Replayable]:
    """Read a log's setting, and return what makes its one machine, the scheduler, by name."""
    try:
        known = msgspec.convert(setting, SchedulerSetting)
    except msgspec.ValidationError as error:
        raise DataError(f"the log's header is not that of a job run: {error}") from None

    def make(name: str) -> Replayable:
        if name != SCHEDULER_NAME:
            raise DataError(f"a job run has one machine, '{SCHEDULER_NAME}'; the log names '{name}'")
        if known.engine == "slurm":
            return Replayable(LiveScheduler(known), LiveEvent)
        return Replayable(known.scheduler(), Event)

    return make
