"""Assembles what the commands that drive a Slurm need: client, policy, network, clock."""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from slimsched.cli.jobs.setting import read_quotas
from slimsched.jobs.domain.fabric import fabric_named
from slimsched.jobs.execution.slurm import preflight
from slimsched.jobs.execution.slurm.client import SlurmClient
from slimsched.jobs.execution.slurm.controller import Entry, SlurmController
from slimsched.jobs.execution.slurm.observation import Clock, Observation, observe
from slimsched.jobs.execution.slurm.preflight import Preflight
from slimsched.jobs.execution.slurm.watch import Patience
from slimsched.jobs.learning.registry import make_policy
from slimsched.jobs.traces.known_models import TRAINING_MODELS
from slimsched.kernel.errors import ConfigError


class SlurmSetup(Struct, frozen=True, kw_only=True):
    """One Slurm and how to schedule it."""

    client: SlurmClient
    preflight: Preflight
    partition: str | None
    clock: Clock
    policy: str
    network: str
    quotas: dict[str, int]
    patience: Patience
    warn: Callable[[str], None]

    def look(self) -> Observation:
        """One look at Slurm."""
        return observe(
            self.client,
            racks=self.preflight.racks,
            partition=self.partition,
            unix_s=time.time(),
            clock=self.clock,
        )

    def make(self, client: SlurmClient, record: Callable[[float, Entry], None]) -> SlurmController:
        """A controller that knows nothing yet."""
        return SlurmController(
            client=client,
            policy=make_policy(self.policy),
            fabric=fabric_named(self.network),
            models=TRAINING_MODELS,
            quotas=self.quotas,
            patience=self.patience,
            record=record,
            warn=self.warn,
        )


def set_up(
    *,
    policy: str,
    network: str,
    quota: list[str] | None,
    conf: Path | None,
    partition: str | None,
    speed: float,
    patience_s: float,
    warn: Callable[[str], None],
) -> SlurmSetup:
    """Check the options and the Slurm they name."""
    if make_policy(policy).knows_service:
        raise ConfigError(
            f"policy '{policy}' must be told how long jobs take, which Slurm cannot; take another"
        )
    fabric_named(network)
    if speed <= 0:
        raise ConfigError(f"speed {speed:g} is not positive; 1 is real time")
    client = SlurmClient(conf=conf)
    checked = preflight.check(client, partition=partition)
    for warning in checked.warnings:
        warn(warning)
    return SlurmSetup(
        client=client,
        preflight=checked,
        partition=partition,
        clock=Clock(speed=speed),
        policy=policy,
        network=network,
        quotas=read_quotas(quota),
        patience=Patience(start_s=patience_s),
        warn=warn,
    )
