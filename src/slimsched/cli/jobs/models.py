"""`slim jobs models`: the training models the simulator knows."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.cli.jobs.workload import (
    DEFAULT_NETWORK,
    Data,
    ModelFile,
    Network,
    read_cluster_named,
    read_models,
)
from slimsched.cli.options import AsJson
from slimsched.core.config import DataError

if TYPE_CHECKING:
    from slimsched.jobs.domain import TrainingModel


def models(
    derive: Annotated[
        bool, typer.Option("--derive", help="Derive them anew from Gavel's, Sia's and Tiresias' data.")
    ] = False,
    data: Data = None,
    model_file: ModelFile = None,
    network: Network = DEFAULT_NETWORK,
    as_json: AsJson = False,
) -> None:
    """Show compute time, exposed gradient bytes and slowdown by tier of each model.

    Examples:

      slim jobs models --derive --data ~/data

      slim jobs models --model-file my-models.toml --network fast
    """
    from slimsched.jobs.traces.measured_models import derive_models

    known = read_models(model_file)
    if derive:
        if data is None:
            raise DataError("deriving needs the measurements; name their folder with --data or SLIM_DATA")
        known = {model.name: model for model in derive_models(data)}
    if as_json:
        print(json.dumps([msgspec.to_builtins(model) for model in known.values()], indent=1))
        return
    console = Console()
    console.print(_table(known, network))
    console.print(f"slowdowns against one machine, the {network} network to itself")


def _table(known: "Mapping[str, TrainingModel]", network: str) -> Table:
    from slimsched.jobs.domain import Job, fabric_named
    from slimsched.jobs.scheduler.network import Sensitivity

    topology = read_cluster_named("racks-512")
    sensitivity = Sensitivity(topology=topology, fabric=fabric_named(network), models=known)
    table = Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False)
    for name in ("model", "seconds", "MB exposed", "8 GPUs in a rack", "8 GPUs across racks", "source"):
        table.add_column(name, justify="left" if name in ("model", "source") else "right")
    for model in known.values():
        slow = sensitivity.traits(Job(id="", arrival_s=0.0, gpus=8, model=model.name)).slow
        table.add_row(
            model.name,
            f"{model.compute_s:.4g}",
            f"{model.exposed_bytes / 1e6:.4g}",
            f"{slow[1]:.2f}×",
            f"{slow[2]:.2f}×",
            model.source,
        )
    return table
