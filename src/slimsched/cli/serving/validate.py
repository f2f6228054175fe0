"""`slim validate`: live against simulated."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from slimsched.cli.serving import scenario as options
from slimsched.kernel.errors import ConfigError


def command(
    scenario: options.ScenarioName = "laptop",
    config: options.ConfigFile = None,
    router: Annotated[str, typer.Option("--router", help="The router; options follow a colon.")] = "sed",
    loads: Annotated[str, typer.Option("--loads", help="Shares of full-width capacity.")] = "0.3,0.7,0.95",
    seconds: Annotated[float, typer.Option("--seconds", help="Length of each live run.")] = 20.0,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with CIFAR-100; else SLIM_DATA.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--as-configured",
            help="Measure first what serving costs beyond the profiles, or take the scenario's figures.",
        ),
    ] = True,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Run the same arrivals live on this machine and simulated, and print the simulator's error.

    A run of its own, at half load and with other arrivals, first measures what batches cost in service beyond
    their profiles (the server's own work, shared cores, cold caches); the simulation knows nothing else of
    the live runs.

    Example:

      slim validate --scenario laptop --loads 0.3,0.7 --json
    """
    from slimsched.cli.serving.images import test_images
    from slimsched.serving.execution.live.validation import FIGURES, Validator
    from slimsched.serving.learning.registry import make_router

    chosen, _, _ = options.choose(scenario, config, None, None, None, None)
    try:
        shares = [float(word) for word in loads.split(",")]
    except ValueError:
        raise ConfigError(f"--loads '{loads}' is not understood; write it as 0.3,0.7") from None
    images, labels, kind = test_images(data)
    console = Console(stderr=True)
    with console.status("starting") as status:
        validator = Validator(
            chosen,
            router,
            images,
            labels,
            seconds=seconds,
            seed=seed,
            progress=status.update,
            make=make_router,
        )
        found = validator.validate(shares, calibrate=calibrate)
    if as_json:
        rows = {
            "scenario": chosen.name,
            "router": router,
            "images": kind,
            **msgspec.to_builtins(found),
        }
        print(json.dumps(rows, indent=1))
        return
    table = Table("load", "figure", "live", "simulated", "error", "at the run's own speed")
    for row in found.loads:
        for name in FIGURES:
            errors = [f"{100 * one[name]:+.1f} %" for one in (row.error, row.error_at_own_speed)]
            table.add_row(
                f"{row.load:.0%}", name, f"{row.live[name]:.4g}", f"{row.simulated[name]:.4g}", *errors
            )
    Console().print(table)
    for server, cost in zip(chosen.cluster.names, found.costs, strict=False):
        text = f"{server}: a batch takes {1e3 * cost.overhead_s:.2f} ms + {cost.slowdown:.2f} × its profile"
        Console().print(text, highlight=False)
    Console().print(f"a message between gateway and server takes {1e3 * found.message_s:.2f} ms")
    Console().print(f"router {router}, {kind}, {seconds:g} s a run")
