"""`slim validate`: live against simulated."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from slimsched.cli import scenario as options
from slimsched.errors import ConfigError


def command(
    scenario: options.ScenarioName = "laptop",
    config: options.ConfigFile = None,
    router: Annotated[str, typer.Option("--router", help="The router; options follow a colon.")] = "sed",
    loads: Annotated[str, typer.Option("--loads", help="Shares of full-width capacity.")] = "0.3,0.7,0.95",
    seconds: Annotated[float, typer.Option("--seconds", help="Length of each live run.")] = 20.0,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with CIFAR-100; else SLIM_DATA.")
    ] = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Run the same arrivals live on this machine and simulated, and print the simulator's error.

    Example:

      slim validate --scenario laptop --loads 0.3,0.7 --json
    """
    from slimsched.cli.images import test_images
    from slimsched.execution.live.validation import FIGURES, validate

    chosen, _, _ = options.choose(scenario, config, None, None, None, None)
    try:
        shares = [float(word) for word in loads.split(",")]
    except ValueError:
        raise ConfigError(f"--loads '{loads}' is not understood; write it as 0.3,0.7") from None
    images, labels, kind = test_images(data)
    console = Console(stderr=True)
    with console.status("starting") as status:
        found = validate(
            chosen, router, shares, images, labels, seconds=seconds, seed=seed, progress=status.update
        )
    if as_json:
        rows = {
            "scenario": chosen.name,
            "router": router,
            "images": kind,
            "loads": msgspec.to_builtins(found),
        }
        print(json.dumps(rows, indent=1))
        return
    table = Table("load", "figure", "live", "simulated", "error")
    for row in found:
        for name in FIGURES:
            error = f"{100 * row.error[name]:+.1f} %"
            table.add_row(
                f"{row.load:.0%}", name, f"{row.live[name]:.4g}", f"{row.simulated[name]:.4g}", error
            )
    Console().print(table)
    Console().print(f"router {router}, {kind}, {seconds:g} s a run")
