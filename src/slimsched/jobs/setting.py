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
from slimsched.jobs.policies.baselines import (
    ASrpt,
    Backfill,
    FifoPolicy,
    FitFirst,
    Gandiva,
    Lwf,
    MaxMin,
    Scored,
    Srsf,
    Srtf,
    Themis,
    Tiresias,
)
from slimsched.jobs.policies.dally import Dally, FixedTimers, MeanTuner, Tuner
from slimsched.jobs.policies.elastic import Elastic, Sia
from slimsched.jobs.scheduler.gpus import split
from slimsched.jobs.scheduler.live import LiveScheduler
from slimsched.jobs.scheduler.messages import Event, LiveEvent
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.telemetry import SCHEDULER_NAME

# -- The table of job policies. A new one is a file and a line here, an entry point, or `file.py:Class`.


def no_wait() -> Dally:
    """Ablation of dally: take any offer."""
    return Dally(Tuner())


def fully_consolidated() -> Dally:
    """Ablation of dally: hold out for the closest tier for ever."""
    return Dally(FixedTimers())


def mean_tuner() -> Dally:
    """Ablation of dally: timers from the mean of accepted waits."""
    return Dally(MeanTuner())


def manual(machine_s: Seconds, rack_s: Seconds) -> Dally:
    """Ablation of dally: the same timers for every job.

    A job takes GPUs of one machine only until `machine_s` seconds after the first offer it declined, of one
    rack only until `rack_s` seconds after it, and then any.
    """
    if machine_s > rack_s:
        raise ConfigError(
            f"machine_s is {machine_s:g} and rack_s {rack_s:g}; give machine_s not above rack_s"
        )
    return Dally(FixedTimers(machine_s, rack_s))


POLICIES: PluginTable[Policy] = PluginTable(
    kind="policy",
    group="slimsched.job_policies",
    result=Policy,
    builtin={
        "fifo": FifoPolicy,
        "backfill": Backfill,
        "fit-first": FitFirst,
        "srtf": Srtf,
        "srsf": Srsf,
        "tiresias": Tiresias,
        "gandiva": Gandiva,
        "max-min": MaxMin,
        "themis": Themis,
        "lwf": Lwf,
        "a-srpt": ASrpt,
        "scored": Scored,
        "sia": Sia,
        "elastic": Elastic,
        "dally": Dally,
        "no-wait": no_wait,
        "fully-consolidated": fully_consolidated,
        "mean-tuner": mean_tuner,
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
            return Replayable(known.live_scheduler(), LiveEvent)
        return Replayable(known.scheduler(), Event)

    return make
