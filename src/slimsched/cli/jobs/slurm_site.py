"""A Slurm as the commands see it: looked at, and ready to be driven."""

import time
from collections.abc import Callable

from msgspec import Struct

from slimsched.cli.jobs.slurm_options import SlurmOptions
from slimsched.cli.jobs.workload import read_models, read_quotas
from slimsched.core.config import ConfigError
from slimsched.core.log import Observer
from slimsched.jobs.domain import fabric_named
from slimsched.jobs.setting import POLICIES, SchedulerSetting
from slimsched.jobs.slurm import controller
from slimsched.jobs.slurm.controller import Clock, Observation, Patience, Preflight, SlurmController, observe
from slimsched.jobs.slurm.wire import SlurmClient


class SlurmSite(Struct, frozen=True, kw_only=True):
    """A Slurm that was looked at, and how to schedule it."""

    client: SlurmClient
    preflight: Preflight
    partition: str | None
    clock: Clock
    setting: SchedulerSetting
    patience: Patience
    warn: Callable[[str], None]

    def look(self) -> Observation:
        """Look at Slurm once."""
        return observe(
            self.client,
            racks=self.preflight.racks,
            partition=self.partition,
            unix_s=time.time(),
            clock=self.clock,
        )

    def controller(self, client: SlurmClient, observer: Observer | None) -> SlurmController:
        """Make a controller that knows nothing yet."""
        return SlurmController(
            client=client, setting=self.setting, patience=self.patience, observer=observer, warn=self.warn
        )


def find_site(
    options: SlurmOptions, *, patience_s: float = 30.0, warn: Callable[[str], None] = lambda text: None
) -> SlurmSite:
    """Check the options and the Slurm they name."""
    if POLICIES.make(options.policy).knows_service:
        raise ConfigError(
            f"policy '{options.policy}' must be told how long jobs take, which Slurm cannot; take another"
        )
    fabric = fabric_named(options.network)
    if options.speed <= 0:
        raise ConfigError(f"speed {options.speed:g} is not positive; 1 is real time")
    client = SlurmClient(conf=options.conf)
    checked = controller.check(client, partition=options.partition)
    for warning in checked.warnings:
        warn(warning)
    return SlurmSite(
        client=client,
        preflight=checked,
        partition=options.partition,
        clock=Clock(speed=options.speed),
        setting=SchedulerSetting(
            engine="slurm",
            policy=options.policy,
            cluster="slurm",
            fabric=fabric,
            models=read_models(options.model_file),
            quotas=read_quotas(options.quota),
        ),
        patience=Patience(start_s=patience_s),
        warn=warn,
    )
