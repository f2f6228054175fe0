"""`slim reproduce`: the paper's tables and figures, ours beside theirs; a new one is one function."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.cli.serving import scenario as options
from slimsched.kernel.errors import UnknownNameError
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.telemetry.summary import Summary


class Asked(Struct, frozen=True, kw_only=True):
    """What the command line says to every reproduction."""

    accuracy: str
    seconds: float | None
    seed: int
    seeds: int
    workers: int
    data: Path | None
    scenario: str
    live: bool
    out: Path | None


class Column(Struct, frozen=True, kw_only=True):
    """One table of the paper: its router here, and its printed figures (only ever printed)."""

    title: str
    router: str
    paper: tuple[str, str, str, str, str]


TABLES = {
    "table3": Column(
        title="Table III: random + greedy",
        router="random",
        paper=("74.43", "8.979 ± 7.302", "1967.94 ± 1629.53", "0.0433 ± 0.0216", "250,906"),
    ),
    "table4": Column(
        title="Table IV: PPO, efficiency-heavy",
        router="ppo-efficient",
        paper=("70.30", "0.318 ± 0.755", "52.85 ± 131.46", "0.0633 ± 0.0571", "420,538"),
    ),
    "table5": Column(
        title="Table V: PPO, balanced",
        router="ppo-balanced",
        paper=("75.26", "6.100 ± 11.673", "1085.41 ± 2125.62", "0.0815 ± 0.0374", "196,947"),
    ),
}
FIGURES = ("fig1", "fig2", "fig3")
EXPERIMENTS = ("loads", "robustness", "scale", "variance", "goals", "ablation")
NAMES = (*TABLES, "tables", *FIGURES, *EXPERIMENTS)
ROWS = ("accuracy, %", "latency, s", "energy (paper's), J", "GPU var", "images answered")


def command(
    what: Annotated[list[str], typer.Argument(help=f"{', '.join(NAMES)} (docs/results.md).")],
    accuracy: options.Accuracy = None,
    seconds: options.Seconds = None,
    seed: options.Seed = 0,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs a table; means over them.")] = 5,
    workers: Annotated[int, typer.Option("--workers", help="Processes; 0: one a core.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", envvar="SLIM_DATA", help="Folder with arrivals/ (real traces), for robustness."
        ),
    ] = None,
    scenario: Annotated[str, typer.Option("--scenario", help="Where `tables` compares routers.")] = "h200",
    live: Annotated[
        bool, typer.Option("--live", help="Measure anew on this machine: tables and figures.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for pictures of figures.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Reproduce parts of the paper and print them beside its figures.

    Examples:

      slim reproduce table3 table4 table5

      slim reproduce table3 --seeds 1 --seconds 10 --json

      slim reproduce fig1 fig2 fig3 --out figures

      slim reproduce tables --scenario h200 --live
    """
    for name in what:
        if name not in REPRODUCTIONS:
            raise UnknownNameError("reproduction", name, list(REPRODUCTIONS))
    asked = Asked(
        accuracy=accuracy or ("measured" if "tables" in what else "paper"),
        seconds=seconds,
        seed=seed,
        seeds=seeds,
        workers=workers or os.cpu_count() or 1,
        data=data,
        scenario=scenario,
        live=live,
        out=out,
    )
    console = Console()
    found = {name: REPRODUCTIONS[name](name, asked) for name in dict.fromkeys(what)}
    if as_json:
        print(json.dumps({name: rows for name, (rows, _) in found.items()}, indent=1))
        return
    for _, show in found.values():
        show(console)


Reproduced = tuple[dict[str, Any], Callable[[Console], None]]


def serving_table(name: str, asked: Asked) -> Reproduced:
    """Tables III to V: one router on the paper's cluster and load."""
    from slimsched.serving.execution.simulated.comparison import compare
    from slimsched.serving.learning.registry import make_router

    column = TABLES[name]
    scenario = load_scenario("paper", accuracy=asked.accuracy).with_load(seconds=asked.seconds)
    (one,) = compare(
        scenario,
        [column.router],
        seed=asked.seed,
        seeds=asked.seeds,
        workers=asked.workers,
        progress=lambda router: None,
        make=make_router,
    )
    ours = _cells(one.summary)

    def show(console: Console) -> None:
        table = Table(
            "", "paper", "here", title=column.title, title_justify="left", box=SIMPLE_HEAD, show_edge=False
        )
        for row, theirs, mine in zip(ROWS, column.paper, ours, strict=True):
            table.add_row(row, theirs, mine)
        console.print(table)

    rows = {
        "router": column.router,
        "paper": dict(zip(ROWS, column.paper, strict=True)),
        "here": dict(zip(ROWS, ours, strict=True)),
        "summary": {**msgspec.to_builtins(one.summary), "ci95": one.ci95},
    }
    return rows, show


def _cells(row: Summary) -> tuple[str, str, str, str, str]:
    return (
        f"{100 * row.accuracy:.2f}",
        f"{row.latency_mean_s:.3f} ± {row.latency_sd_s:.3f}",
        f"{row.energy_paper_j:.2f} ± {row.energy_paper_sd_j:.2f}",
        f"{row.gpu_var:.4f} ± {row.gpu_var_sd:.4f}",
        f"{row.completed:,} of {row.arrived:,}",
    )


def experiment(name: str, asked: Asked) -> Reproduced:
    """The open questions and the goal router's claims."""
    from slimsched.cli.serving.reproduce_experiment import run_experiment

    return run_experiment(
        name,
        accuracy=asked.accuracy,
        seconds=asked.seconds,
        data=asked.data,
        seed=asked.seed,
        seeds=asked.seeds,
        workers=asked.workers,
    )


def figure(name: str, asked: Asked) -> Reproduced:
    """Figures 1 to 3: a GPU by batch size and by load."""
    from slimsched.cli.serving.reproduce_figures import reproduce

    return reproduce(name, live=asked.live, out=asked.out)


def tables(name: str, asked: Asked) -> Reproduced:
    """The routers of Tables III to V, and ours, on a cluster that may be real."""
    from slimsched.cli.serving.reproduce_live import reproduce_tables

    return reproduce_tables(
        asked.scenario,
        live=asked.live,
        accuracy=asked.accuracy,
        seconds=asked.seconds,
        seed=asked.seed,
        data=asked.data,
    )


REPRODUCTIONS: dict[str, Callable[[str, Asked], Reproduced]] = {
    **dict.fromkeys(TABLES, serving_table),
    "tables": tables,
    **dict.fromkeys(FIGURES, figure),
    **dict.fromkeys(EXPERIMENTS, experiment),
}
