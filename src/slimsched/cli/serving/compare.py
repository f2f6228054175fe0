"""`slim compare`: several routers on one scenario, beside the fluid bound."""

import json
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slimsched.cli.serving import engine as engines
from slimsched.cli.serving import scenario as options
from slimsched.cli.table import print_summaries
from slimsched.kernel.errors import ConfigError
from slimsched.serving.execution.simulated.comparison import compare
from slimsched.serving.learning.registry import make_router
from slimsched.serving.telemetry.bound_curve import energy_bound
from slimsched.serving.telemetry.plots import plot_runs
from slimsched.serving.telemetry.run_folder import make_folder, trace_arrays, write_run

DEFAULT = "random,round-robin,jsq,power-of-two,sed,speed-jsq,drift-plus-penalty,slackfit,lp"


def command(
    scenario: options.ScenarioName = "paper",
    routers: Annotated[str, typer.Option("--routers", help="Comma-separated names.")] = DEFAULT,
    config: options.ConfigFile = None,
    accuracy: options.Accuracy = None,
    arrivals: options.Arrivals = None,
    rate: options.Rate = None,
    seconds: options.Seconds = None,
    deadline_ms: options.Deadline = None,
    warmup: Annotated[
        float, typer.Option("--warmup", help="Seconds at the start that are left out of all figures.")
    ] = 0.0,
    seed: options.Seed = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Runs a router; means and 95 % intervals over them.")
    ] = 1,
    engine: engines.EngineName = "local",
    address: engines.Address = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes; 0: one a core.")] = 0,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw latency, front and widths to a PNG.")
    ] = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare routers on a scenario.

    Examples:

      slim compare --scenario paper

      slim compare --routers random,sed,lp --seconds 10 --warmup 2 --seeds 5 --json

      slim compare --routers drift-plus-penalty,goal:p99_ms=80,goal:minimise=energy:min_accuracy=75

      slim compare --arrivals trace.csv.gz --rate 5000 --seconds 30 --plot compare.png

      slim compare --seconds 10 --out runs/routers && slim report runs/routers
    """
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; give 1 or more")
    chosen, raw, _ = options.choose(scenario, config, accuracy, arrivals, rate, seconds, deadline_ms)
    chosen = chosen.with_load(warmup_s=warmup)
    names = [name.strip() for name in routers.split(",") if name.strip()]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=as_json, transient=True) as bar:
        task = bar.add_task(f"simulating {chosen.name}", total=len(names) * seeds)
        found = compare(
            chosen,
            names,
            seed=seed,
            seeds=seeds,
            workers=workers or os.cpu_count() or 1,
            progress=lambda router: bar.update(task, advance=1, description=f"{router} done"),
            make=make_router,
            pool=engines.task_pool(engine, address),
        )
    if plot is not None:
        plot_runs([one.trace for one in found], f"{chosen.name}, seed {seed}", plot)
    rows = [{**msgspec.to_builtins(one.summary), "ci95": one.ci95} for one in found]
    if out is not None:
        about = options.about(chosen, raw, seed, seeds)
        arrays = trace_arrays([one.trace for one in found], options.arrival_s(chosen, seed))
        first = found[0].trace.summary
        arrays |= energy_bound(chosen.cluster, max(1, first.arrived) / first.seconds)
        write_run(make_folder(out), about, rows, arrays)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    load = chosen.load
    console = Console()
    print_summaries(console, [one.summary for one in found], f"{chosen.name}: {chosen.description}")
    console.print(
        f"{load.arrivals} arrivals, {load.rate_per_s:g} a second for {load.seconds:g} s, "
        f"deadline {load.deadline_s:g} s; accuracy table '{chosen.cluster.accuracy.name}', "
        f"fluid bound {100 * found[0].summary.bound_accuracy:.2f} %; energy {found[0].summary.energy_source}"
    )
    for written in (plot, out):
        if written is not None:
            console.print(f"written: {written}")
