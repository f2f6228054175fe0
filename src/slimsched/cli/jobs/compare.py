"""`slim jobs compare`: several policies on the same jobs."""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slimsched.cli.jobs.results import Results
from slimsched.cli.jobs.table import flat, print_rows
from slimsched.cli.jobs.workload import DEFAULT_NETWORK, Workload, progress_bar
from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import ConfigError, Count, CountOrZero, WorkerCount

if TYPE_CHECKING:
    from slimsched.jobs.domain import Job
    from slimsched.jobs.simulated.comparison import JobRow, JobSetting

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
    _show(rows, settings, f"{workload.trace} on {topology.name}", seeds)
    for path in results.written():
        Console().print(f"written: {path}")


def _show(rows: "Sequence[JobRow]", settings: "Sequence[JobSetting]", where: str, seeds: int) -> None:
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
