"""Commands that simulate training jobs: `slim jobs simulate`, `compare` and `models`, and what they leave
behind.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.cli.jobs.workload import (
    DEFAULT_NETWORK,
    Data,
    ModelFile,
    Network,
    PolicyName,
    Workload,
    progress_bar,
    read_cluster_named,
    read_models,
)
from slimsched.cli.options import AsJson, file_to_write, picture, with_options
from slimsched.core.config import ConfigError, Count, CountOrZero, DataError, WorkerCount
from slimsched.core.log import EVENTS

if TYPE_CHECKING:
    from slimsched.jobs.domain import Job, TrainingModel
    from slimsched.jobs.simulated.comparison import JobRow, JobSetting
    from slimsched.jobs.telemetry import JobEntry, JobHistory, JobSummary

# -- What a simulation of jobs leaves behind: pictures, and a folder with its figures and its log.

if TYPE_CHECKING:
    from slimsched.cli.jobs.workload import Workload
    from slimsched.jobs.simulated.comparison import JobSetting
    from slimsched.jobs.telemetry import JobEntry, JobHistory, JobSummary

    PolicyRuns = Mapping[str, tuple[JobSummary, Mapping[str, JobHistory]]]


class Results(Struct, frozen=True, kw_only=True):
    """Where to leave pictures and the run folder, if anywhere."""

    plot: Annotated[
        Path | None, typer.Option("--plot", callback=picture, help="Draw the run of the first seed to a PNG.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Leave the run in this folder, for slim report and slim replay."),
    ] = None

    def write(
        self,
        workload: "Workload",
        setting: "JobSetting",
        runs: "PolicyRuns",
        rows: Sequence[Mapping[str, Any]],
        *,
        seeds: int = 1,
    ) -> None:
        """Write what was asked for; the runs are those of the first seed."""
        title = f"{workload.trace} on {setting.cluster} ({setting.topology.gpus} GPUs)"
        title += f", {setting.network}, {setting.arrivals}"
        if self.plot is not None:
            from slimsched.jobs.pictures import plot_jobs

            plot_jobs(runs, setting.topology, f"{title}, seed {workload.seed}", self.plot)
        if self.out is not None:
            _write_folder(self.out, title, workload, setting, runs, rows, seeds)

    def written(self) -> list[Path]:
        """List what was written."""
        return [path for path in (self.plot, self.out) if path is not None]


def write_log(path: Path, policy: str, setting: "JobSetting", entries: "Sequence[JobEntry]") -> None:
    """Write the log of a simulated run, from which it can be replayed."""
    from slimsched.core.log import LogWriter
    from slimsched.jobs.telemetry import pass_on

    with LogWriter(path, setting.scheduler_setting(policy).header()) as log:
        pass_on(entries, log)


def _write_folder(
    folder: Path,
    title: str,
    workload: "Workload",
    setting: "JobSetting",
    runs: "PolicyRuns",
    rows: Sequence[Mapping[str, Any]],
    seeds: int,
) -> None:
    from slimsched.jobs.pictures import job_arrays
    from slimsched.serving.telemetry.run_folder import About, make_folder, write_run

    topology = setting.topology
    config = {"trace": workload.trace, "gpus": topology.gpus, "racks": len(topology.racks)}
    left_out = ("machines", "known_models")
    config |= {name: value for name, value in msgspec.to_builtins(setting).items() if name not in left_out}
    about = About(kind="jobs", title=title, seed=workload.seed, seeds=seeds, config=config)
    histories = {name: by_job for name, (_, by_job) in runs.items()}
    write_run(make_folder(folder), about, rows, job_arrays(histories, topology))


# -- Rows of job schedules as a table for people.

NARROW = 110
"""Terminals narrower than this get the main columns only."""


def print_rows(console: Console, rows: "Sequence[JobRow]", title: str) -> None:
    """Print one policy per row; ± is the half width of the 95 % interval over seeds."""
    console.print(f"[bold]{title}[/bold]")
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("policy", no_wrap=True)
    wide = console.width >= NARROW
    names = ["JCT mean", "makespan", "wait", "comm", "avoidable", "stops"]
    for name in names + (["p50", "p99", "GPUs held", "events/s"] if wide else []):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        s, ci = row.summary, row.ci95
        cells = [
            _spread(s.jct_mean_s, ci["jct_mean_s"]),
            _spread(s.makespan_s, ci["makespan_s"]),
            _time(s.wait_mean_s),
            f"{s.comm_overhead:.3f}",
            f"{round(s.excess_comm, 3) + 0.0:.3f}",  # never -0.000
            f"{s.preemptions:.0f}",
        ]
        if wide:
            cells += [
                _time(s.jct_p50_s),
                _time(s.jct_p99_s),
                f"{100 * s.utilization:.1f} %",
                f"{s.events_per_wall_s:,.0f}",
            ]
        table.add_row(s.policy + " *" * row.told_durations, *cells)
    console.print(table)
    bound = rows[0].summary
    console.print(
        f"makespan can be no shorter than {_time(bound.makespan_bound_s)} "
        f"(ideal GPU-seconds / GPUs: {_time(bound.work_bound_s)}); comm is communication over computing, "
        "avoidable the part of it that the closest placements would not have"
    )
    if any(row.told_durations for row in rows):
        console.print("* is told how long jobs take, which a real cluster cannot tell it")


def flat(row: "JobRow") -> dict[str, Any]:
    """Return a row as one flat object."""
    fields = msgspec.to_builtins(row)
    return {**fields.pop("summary"), **fields}


def _time(seconds: float) -> str:
    """Seconds, or hours from three hours on."""
    return f"{seconds:.1f} s" if seconds < 10800 else f"{seconds / 3600:.2f} h"


def _spread(mean: float, half_width: float) -> str:
    if not half_width:
        return _time(mean)
    scale, unit = (1.0, "s") if mean < 10800 else (3600.0, "h")
    return f"{mean / scale:.2f}±{half_width / scale:.2f} {unit}"


# -- `slim jobs models`: the training models the simulator knows.


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


# -- `slim jobs compare`: several policies on the same jobs.

DEFAULT = "fifo,fit-first,srtf,tiresias,gandiva,themis,lwf,a-srpt,dally"
WINDOWS = 4
"""Generated jobs per job of a window, so that every seed finds a window of its own."""


class ComparedWorkload(Workload, frozen=True, kw_only=True):
    """A workload under one or several networks and kinds of arrivals."""

    network: Annotated[
        str, typer.Option("--network", help="fast, oversubscribed, congested; comma-separated.")
    ] = DEFAULT_NETWORK
    arrivals: Annotated[str, typer.Option("--arrivals", help="trace, batch, poisson; comma-separated.")] = (
        "trace"
    )
    jobs: Annotated[
        CountOrZero, typer.Option("--jobs", help="Jobs to take from the trace, in a row; 0 takes all.")
    ] = 3000


@with_options
def compare(
    workload: ComparedWorkload,
    results: Results,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            show_default=False,
            help=f"Separated by commas, of those above; by default {DEFAULT.replace(',', ', ')}.",
        ),
    ] = DEFAULT,
    seeds: Annotated[
        Count, typer.Option("--seeds", help="Windows and model assignments; means and 95 % intervals.")
    ] = 1,
    workers: Annotated[WorkerCount, typer.Option("--workers", help="Processes; 0: one per core.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare policies on the same jobs.

    Policies: fifo, backfill, fit-first, srtf, srsf, tiresias, gandiva, max-min, themis, lwf, a-srpt,
    scored, elastic and sia (both may give a job fewer or more GPUs than it asks for), dally, its ablations
    no-wait, fully-consolidated, mean-tuner and manual:machine_s=SECONDS:rack_s=SECONDS. A policy of your
    own is FILE.py:Class, or the name of an entry point of an installed package.

    Examples:

      slim jobs compare --trace helios --network congested --seeds 5 --json

      slim jobs compare --policies tiresias,dally --arrivals batch,poisson --network fast,congested

      slim jobs compare --policies manual:machine_s=43200:rack_s=86400,dally --plot compare.png

      slim jobs compare --policies dally,my_policy.py:MyPolicy --jobs 500

      slim jobs compare --jobs 500 --out runs/policies && slim report runs/policies
    """
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names:
        raise ConfigError("no policy given; name some with --policies, such as tiresias,dally")
    topology = workload.topology()
    settings = workload.settings(topology)
    trace = workload.read_jobs(topology, windows=WINDOWS)
    rows = _run(trace, names, settings, workload.seed, seeds, workers, quiet=as_json)
    if results.written():
        _leave(results, workload, settings[0], trace, names, rows, seeds)
    if as_json:
        print(json.dumps([flat(row) for row in rows], indent=1))
        return
    _show_compared(rows, settings, f"{workload.trace} on {topology.name}", seeds)
    for path in results.written():
        Console().print(f"written: {path}")


def _show_compared(
    rows: "Sequence[JobRow]", settings: "Sequence[JobSetting]", where: str, seeds: int
) -> None:
    """Print one table per setting."""
    policies = len(rows) // len(settings)
    for i, setting in enumerate(settings):
        title = f"{where}, {setting.network}, {setting.arrivals}, {seeds} seeds"
        print_rows(Console(), rows[i * policies : (i + 1) * policies], title)


def _run(
    trace: "Sequence[Job]",
    names: Sequence[str],
    settings: "Sequence[JobSetting]",
    seed: int,
    seeds: int,
    workers: int,
    *,
    quiet: bool,
) -> "list[JobRow]":
    from slimsched.jobs.simulated import comparison

    total, done = len(names) * seeds * len(settings), 0
    with progress_bar("simulating", total=total, quiet=quiet) as show:

        def finished(name: str) -> None:
            nonlocal done
            done += 1
            show(done, f"{name} done")

        return comparison.compare(
            trace,
            names,
            settings,
            seed=seed,
            seeds=seeds,
            workers=workers or os.cpu_count() or 1,
            progress=finished,
        )


def _leave(
    results: Results,
    workload: Workload,
    setting: "JobSetting",
    trace: "Sequence[Job]",
    names: Sequence[str],
    rows: "Sequence[JobRow]",
    seeds: int,
) -> None:
    """Run the first seed of the first setting once more, for its pictures and its folder."""
    from slimsched.jobs.simulated import comparison

    prepared = comparison.prepare(trace, setting, workload.seed)
    runs = {name: comparison.simulate(name, prepared, setting, workload.seed)[:2] for name in names}
    results.write(workload, setting, runs, [flat(row) for row in rows[: len(names)]], seeds=seeds)


# -- `slim jobs simulate`: one policy on one trace.

REPORT_EVERY = 64
"""Finished jobs between two updates of the progress bar."""


@with_options
def simulate(
    workload: Workload,
    results: Results,
    policy: PolicyName = "dally",
    log: Annotated[
        Path | None, typer.Option("--log", callback=file_to_write, help="Write the event log to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one policy on a trace.

    With --out the folder also holds the event log: slim replay checks every decision in it.

    Examples:

      slim jobs simulate --trace generated --jobs 3000 --policy dally

      slim jobs simulate --trace tiresias --policy fifo --gpus 16

      slim jobs simulate --trace my_sacct.txt --cluster my_racks.csv --network oversubscribed --plot run.png

      slim jobs simulate --jobs 500 --out runs/dally && slim report runs/dally
    """
    from slimsched.jobs.simulated import comparison

    setting, jobs = workload.prepare()
    text = f"{policy} on {workload.trace}"
    with progress_bar(text, total=len(jobs), quiet=as_json) as show:

        def finished(count: int) -> None:
            if count % REPORT_EVERY == 0:
                show(count, text)

        run = comparison.simulate(policy, jobs, setting, workload.seed, None if as_json else finished)
    summary, histories, entries = run
    row = comparison.average([summary], network=setting.network, arrivals=setting.arrivals)
    results.write(workload, setting, {policy: (summary, histories)}, [flat(row)])
    logs = [results.out / EVENTS] if results.out else []
    for path in [*logs, *([log] if log else [])]:
        write_log(path, policy, setting, entries)
    _show_run(row, setting, workload.trace, as_json=as_json)
    if not as_json:
        for path in [*results.written(), *([log] if log else [])]:
            Console().print(f"written: {path}")


def _show_run(row: "JobRow", setting: "JobSetting", trace: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**msgspec.to_builtins(row.summary), **_setting(row)}, indent=1))
        return
    title = f"{trace} on {setting.cluster} ({setting.topology.gpus} GPUs), {setting.network}"
    print_rows(Console(), [row], f"{title}, {setting.arrivals}")


def _setting(row: "JobRow") -> dict[str, object]:
    return {"network": row.network, "arrivals": row.arrivals, "told_durations": row.told_durations}
