"""The table of job policies. A new one is a file and a line here, an entry point, or `file.py:Class`."""

from slimsched.jobs.policies.baselines import (
    ASrpt,
    Backfill,
    Fifo,
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
from slimsched.jobs.scheduler.policy import Policy
from slimsched.kernel.errors import ConfigError
from slimsched.kernel.plugins import PluginTable
from slimsched.kernel.quantity import Seconds


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
        "fifo": Fifo,
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
