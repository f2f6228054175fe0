"""The options of commands that look at or drive a Slurm."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from slimsched.cli.jobs.workload import DEFAULT_NETWORK, ModelFile, Network, PolicyName, Quota
from slimsched.core.config import Factor

Conf = Annotated[
    Path | None, typer.Option("--conf", help="The cluster's slurm.conf; else SLURM_CONF or /etc/slurm.")
]
Partition = Annotated[
    str | None, typer.Option("--partition", help="Only this partition's jobs and machines.")
]

Speed = Annotated[Factor, typer.Option("--speed", help="Scheduler's seconds per second; above 1 for demos.")]


class SlurmOptions(Struct, frozen=True, kw_only=True):
    """Which Slurm, and how it is scheduled."""

    policy: PolicyName = "dally"
    network: Network = DEFAULT_NETWORK
    partition: Partition = None
    quota: Quota = None
    speed: Speed = 1.0
    model_file: ModelFile = None
    conf: Conf = None
