"""`slim simulate`: one router on one scenario."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from slimsched.cli.serving import scenario as options
from slimsched.cli.table import print_summaries
from slimsched.kernel.log import LogWriter, log_path
from slimsched.kernel.observer import Observer
from slimsched.serving.execution.run_setting import RunSetting
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.learning.registry import goal_spec, make_router
from slimsched.serving.telemetry.bound_curve import BoundCurve, energy_bound
from slimsched.serving.telemetry.plots import plot_runs
from slimsched.serving.telemetry.recorder import Recorder
from slimsched.serving.telemetry.run_folder import make_folder, trace_arrays, write_run


def command(
    scenario: options.ScenarioName = "paper",
    router: Annotated[str, typer.Option("--router", help="The router; options follow a colon.")] = "sed",
    config: options.ConfigFile = None,
    accuracy: options.Accuracy = None,
    arrivals: options.Arrivals = None,
    rate: options.Rate = None,
    seconds: options.Seconds = None,
    deadline_ms: options.Deadline = None,
    seed: options.Seed = 0,
    min_accuracy: Annotated[
        float | None, typer.Option("--min-accuracy", help="Goal: mean accuracy in percent, at least.")
    ] = None,
    p99_ms: Annotated[
        float | None, typer.Option("--p99-ms", help="Goal: 99th percentile of latency, at most.")
    ] = None,
    minimise: Annotated[
        str | None, typer.Option("--minimise", help="Goal: energy or latency, instead of most accuracy.")
    ] = None,
    kill: Annotated[list[str], typer.Option("--kill", help="Kill a server, as server-0@10s.")] = [],  # noqa: B006
    restore: Annotated[list[str], typer.Option("--restore", help="Bring it back, as server-0@20s.")] = [],  # noqa: B006
    slow: Annotated[list[str], typer.Option("--slow", help="Slow it down, as server-0@5sx2.")] = [],  # noqa: B006
    drain: Annotated[bool, typer.Option("--drain", help="Go on until every request is answered.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", help="Write the event log (.jsonl or .jsonl.gz).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw latency, front and widths to a PNG.")
    ] = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate one router on a scenario.

    Examples:

      slim simulate --scenario paper --router lp

      slim simulate --router drift-plus-penalty:v=8 --rate 5000 --seconds 10 --plot run.png

      slim simulate --router goal --min-accuracy 75 --p99-ms 80 --minimise energy

      slim simulate --kill server-0@10s --restore server-0@20s --drain --json

      slim simulate --router lp --seconds 10 --out runs/lp && slim report runs/lp
    """
    chosen, raw, path = options.choose(scenario, config, accuracy, arrivals, rate, seconds, deadline_ms)
    chosen = chosen.with_faults(options.faults(kill, restore, slow))
    router = goal_spec(router, min_accuracy=min_accuracy, p99_ms=p99_ms, minimise=minimise)
    beside = "" if config is None else str(path.parent.resolve())
    header = RunSetting(scenario=raw, beside=beside, router=router, seed=seed).header()
    recorder = None
    with ExitStack() as stack:
        observers: list[Observer] = []
        if log is not None:
            observers.append(stack.enter_context(LogWriter(log, header)))
        if out is not None:
            observers.append(stack.enter_context(LogWriter(log_path(make_folder(out)), header)))
            bound = BoundCurve(chosen.cluster).accuracy
            recorder = Recorder(chosen.cluster, router, seconds=chosen.load.seconds, bound=bound)
            observers.append(recorder)
        if not as_json:
            stack.enter_context(
                Console(stderr=True).status(f"simulating {chosen.load.seconds:g} s of {chosen.name}")
            )
        trace = simulate(chosen, router, seed=seed, drain=drain, observers=observers, make=make_router)
    if plot is not None:
        plot_runs([trace], f"{chosen.name}, seed {seed}", plot)
    if out is not None and recorder is not None:
        about = options.about(chosen, raw, seed)
        rows = [msgspec.to_builtins(trace.summary)]
        arrays = trace_arrays([trace], options.arrival_s(chosen, seed))
        arrays |= energy_bound(chosen.cluster, max(1, trace.summary.arrived) / trace.summary.seconds)
        write_run(out, about, rows, arrays, recorder.frames)
    if as_json:
        print(msgspec.json.encode(trace.summary).decode())
        return
    console, row = Console(), trace.summary
    print_summaries(console, [row], f"{chosen.name}: {chosen.description}")
    console.print(
        f"arrived {row.arrived}, answered {row.completed}, dropped {row.dropped}, "
        f"unfinished {row.unfinished}, lost {row.lost}, answered twice {row.duplicates}; "
        f"mean batch {row.batch_mean:.1f}; energy {row.energy_source}; "
        f"{row.requests_per_wall_s:,.0f} simulated requests a second"
    )
    for written in (log, plot, out):
        if written is not None:
            console.print(f"written: {written}")
