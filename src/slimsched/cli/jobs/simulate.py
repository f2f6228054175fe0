"""`slim jobs simulate`: one policy on one trace."""

import gzip
import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slimsched.cli.jobs import setting as options

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def simulate(
    trace: options.Trace = "generated",
    policy: Annotated[str, typer.Option("--policy", help="Name of a policy.")] = "dally",
    cluster: options.Cluster = "racks-512",
    gpus: options.Gpus = None,
    network: options.Network = "congested",
    arrivals: options.Arrivals = "trace",
    load: options.Load = 1.0,
    jobs: options.Jobs = 0,
    seed: options.Seed = 0,
    failures: options.Failures = 0.0,
    quota: options.Quota = None,
    models: options.Models = None,
    data: options.Data = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="Write events and commands as JSON lines.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the run to a PNG.")] = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate one policy on a trace.

    Examples:

      slim jobs simulate --trace generated --jobs 3000 --policy dally

      slim jobs simulate --trace tiresias --policy fifo --gpus 16

      slim jobs simulate --trace my_sacct.txt --cluster my_racks.csv --network oversubscribed --plot run.png

      slim jobs simulate --jobs 500 --out runs/dally && slim report runs/dally
    """
    from slimsched.cli.jobs.table import print_rows
    from slimsched.jobs.execution.simulated import comparison
    from slimsched.jobs.learning.registry import make_policy
    from slimsched.jobs.telemetry.log import encode
    from slimsched.serving.telemetry.run_folder import EVENTS

    topology = options.read_topology(cluster, gpus)
    setting = options.make_setting(
        topology,
        network=network,
        arrivals=arrivals,
        load=load,
        jobs=jobs,
        failures=failures,
        quota=quota,
        models=models,
    )
    prepared = comparison.prepare(options.read_trace(trace, data, seed, jobs, topology), setting, seed)
    with Progress(*COLUMNS, console=Console(stderr=True), disable=as_json, transient=True) as bar:
        task = bar.add_task(f"{policy} on {trace}", total=len(prepared))
        report = (
            None if as_json else lambda done: bar.update(task, completed=done) if done % 64 == 0 else None
        )
        summary, found, entries = comparison.simulate(policy, prepared, setting, seed, report, make_policy)
    if log is not None:
        log.write_bytes(encode(entries))
    if plot is not None:
        from slimsched.jobs.telemetry.plots import plot_jobs

        plot_jobs({policy: (summary, found)}, topology, f"{trace} on {topology.name}, {network}", plot)
    if out is not None:
        options.leave_run(out, trace, setting, seed, [msgspec.to_builtins(summary)], {policy: found})
        (out / EVENTS).write_bytes(gzip.compress(encode(entries), mtime=0))
    if as_json:
        print(
            json.dumps({**msgspec.to_builtins(summary), "network": network, "arrivals": arrivals}, indent=1)
        )
        return
    console = Console()
    row = comparison.average([summary], network=network, arrivals=arrivals)
    print_rows(console, [row], f"{trace} on {topology.name} ({topology.gpus} GPUs), {network}, {arrivals}")
    for path in filter(None, (log, plot, out)):
        console.print(f"written: {path}")
