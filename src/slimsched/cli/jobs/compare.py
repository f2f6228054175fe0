"""`slim jobs compare`: several policies on the same jobs."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from slimsched.cli.jobs import setting as options
from slimsched.cli.jobs.simulate import COLUMNS
from slimsched.kernel.errors import ConfigError

if TYPE_CHECKING:
    from slimsched.jobs.execution.simulated.comparison import JobRow, JobSetting
    from slimsched.jobs.telemetry.runs import JobHistory
    from slimsched.jobs.telemetry.summary import JobSummary

DEFAULT = "fifo,fit-first,srtf,tiresias,gandiva,themis,lwf,a-srpt,dally"


def compare(
    trace: options.Trace = "generated",
    policies: Annotated[str, typer.Option("--policies", help="Comma-separated names.")] = DEFAULT,
    cluster: options.Cluster = "racks-512",
    gpus: options.Gpus = None,
    network: Annotated[
        str, typer.Option("--network", help="fast, oversubscribed, congested; comma-separated.")
    ] = ("congested"),
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="trace, batch, poisson; comma-separated.")
    ] = "trace",
    load: options.Load = 1.0,
    jobs: options.Jobs = 3000,
    seed: options.Seed = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Windows and model assignments; means and 95 % intervals.", min=1)
    ] = 1,
    workers: Annotated[int, typer.Option("--workers", help="Processes; 0: one a core.", min=0)] = 0,
    failures: options.Failures = 0.0,
    quota: options.Quota = None,
    models: options.Models = None,
    data: options.Data = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the first seed to a PNG.")] = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare policies on the same jobs.

    Policies: fifo, fit-first, srtf, srsf, tiresias, gandiva, themis, lwf, a-srpt, scored, rl (or
    rl:FILE, see slim jobs train), dally, and dally's ablations no-wait, fully-consolidated, mean-tuner and
    manual:TM:TR (timers in seconds).

    Examples:

      slim jobs compare --trace helios --network congested --seeds 5 --json

      slim jobs compare --policies tiresias,dally --arrivals batch,poisson --network fast,congested

      slim jobs compare --policies manual:43200:86400,dally --jobs 3000 --plot compare.png

      slim jobs compare --jobs 500 --out runs/policies && slim report runs/policies
    """
    from slimsched.cli.jobs.table import print_rows
    from slimsched.jobs.execution.simulated import comparison
    from slimsched.jobs.learning.registry import make_policy

    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names:
        raise ConfigError("no policy given; name some with --policies, such as tiresias,dally")
    topology = options.read_topology(cluster, gpus)
    settings = [
        options.make_setting(
            topology,
            network=net,
            arrivals=kind,
            load=load,
            jobs=jobs,
            failures=failures,
            quota=quota,
            models=models,
        )
        for net in network.split(",")
        for kind in arrivals.split(",")
    ]
    read = options.read_trace(trace, data, seed, 4 * jobs, topology)  # room for a window a seed
    with Progress(*COLUMNS, console=Console(stderr=True), disable=as_json, transient=True) as bar:
        task = bar.add_task(f"simulating {trace}", total=len(names) * seeds * len(settings))
        rows = comparison.compare(
            read,
            names,
            settings,
            seed=seed,
            seeds=seeds,
            workers=workers or os.cpu_count() or 1,
            progress=lambda name: bar.update(task, advance=1, description=f"{name} done"),
            make=make_policy,
        )
    if plot is not None or out is not None:
        prepared = comparison.prepare(read, settings[0], seed)
        runs = {
            name: comparison.simulate(name, prepared, settings[0], seed, make=make_policy)[:2]
            for name in names
        }
        if plot is not None:
            _plot(plot, runs, settings[0], seed, f"{trace} on {topology.name}")
        if out is not None:
            found = {name: run[1] for name, run in runs.items()}
            flat = [_flat(row) for row in rows[: len(names)]]
            options.leave_run(out, trace, settings[0], seed, flat, found, seeds)
    if as_json:
        print(json.dumps([_flat(row) for row in rows], indent=1))
        return
    console = Console()
    for i, setting in enumerate(settings):
        title = f"{trace} on {topology.name}, {setting.network}, {setting.arrivals}, {seeds} seeds"
        print_rows(console, rows[i * len(names) : (i + 1) * len(names)], title)
    for path in filter(None, (plot, out)):
        console.print(f"written: {path}")


def _flat(row: "JobRow") -> dict[str, object]:
    """A row as one flat object."""
    fields = msgspec.to_builtins(row)
    return {**fields.pop("summary"), **fields}


def _plot(
    path: Path,
    runs: "dict[str, tuple[JobSummary, dict[str, JobHistory]]]",
    setting: "JobSetting",
    seed: int,
    title: str,
) -> None:
    """Draw the runs of one seed."""
    from slimsched.jobs.telemetry.plots import plot_jobs

    plot_jobs(runs, setting.topology, f"{title}, {setting.network}, {setting.arrivals}, seed {seed}", path)
