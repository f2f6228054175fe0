"""`slim reproduce`: the paper's tables and figures, ours beside theirs. A new one is one function."""

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

from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.cli.serving.scenario import Accuracy, Seconds, Workers
from slimsched.kernel.errors import UnknownNameError
from slimsched.kernel.quantity import Count
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.telemetry.summary import Summary


class ReproduceOptions(Struct, frozen=True, kw_only=True):
    """Options of every reproduction."""

    accuracy: Accuracy = None
    seconds: Seconds = None
    seed: Seed = 0
    seeds: Annotated[Count, typer.Option("--seeds", help="Runs per router; figures are means.")] = 5
    workers: Workers = 0
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", envvar="SLIM_DATA", help="Folder with arrivals/ (real traces), for robustness."
        ),
    ] = None
    scenario: Annotated[
        str, typer.Option("--scenario", help="The scenario on which `tables` compares routers.")
    ] = "h200"
    live: Annotated[
        bool, typer.Option("--live", help="Measure tables and figures again, on this machine.")
    ] = False
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the pictures of figures.")] = None
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR", help="Tables for another model: slimvit, or a model folder."),
    ] = None

    @property
    def processes(self) -> int:
        """How many processes to use."""
        return self.workers or os.cpu_count() or 1

    def accuracy_for(self, name: str) -> str:
        """Which accuracy table a reproduction uses: the paper's own, unless told otherwise."""
        return self.accuracy or ("measured" if name == "tables" or self.model else "paper")

    def scenario_of(self, scenario: str, name: str) -> Scenario:
        """Return a scenario with the model, the accuracies and the length that a reproduction asks for."""
        models = [self.model] if self.model else []
        loaded = load_scenario(scenario, accuracy=self.accuracy_for(name), models=models)
        return loaded.with_load(seconds=self.seconds)


class Column(Struct, frozen=True, kw_only=True):
    """One table of the paper: its router here, and its printed figures (they are only printed)."""

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


@with_options
def command(
    what: Annotated[list[str], typer.Argument(help=f"{', '.join(NAMES)} (docs/results.md).")],
    options: ReproduceOptions,
    as_json: AsJson = False,
) -> None:
    """Reproduce parts of the paper and print them beside its figures.

    Examples:

      slim reproduce table3 table4 table5

      slim reproduce table3 --seeds 1 --seconds 10 --json

      slim reproduce fig1 fig2 fig3 --out figures

      slim reproduce tables --scenario h200 --live

      slim reproduce table3 table4 table5 --model slimvit
    """
    for name in what:
        if name not in REPRODUCTIONS:
            raise UnknownNameError("reproduction", name, list(REPRODUCTIONS))
    console = Console()
    results = {name: REPRODUCTIONS[name](name, options) for name in dict.fromkeys(what)}
    if as_json:
        print(json.dumps({name: rows for name, (rows, _) in results.items()}, indent=1))
        return
    for _, show in results.values():
        show(console)


Reproduced = tuple[dict[str, Any], Callable[[Console], None]]
"""The rows of a reproduction, and a function that shows them."""


def serving_table(name: str, options: ReproduceOptions) -> Reproduced:
    """Reproduce one of Tables III to V: one router on the paper's cluster and load."""
    from slimsched.serving.execution.simulated.comparison import compare

    column = TABLES[name]
    scenario = options.scenario_of("paper", name)
    (compared,) = compare(
        scenario,
        [column.router],
        seed=options.seed,
        seeds=options.seeds,
        workers=options.processes,
    )
    ours = _cells(compared.summary)

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
        "summary": {**msgspec.to_builtins(compared.summary), "ci95": compared.ci95},
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


def experiment(name: str, options: ReproduceOptions) -> Reproduced:
    """Run an experiment: the paper's open questions, and what the goal router claims."""
    from slimsched.cli.serving.reproduce_experiment import run_experiment

    return run_experiment(
        name,
        accuracy=options.accuracy_for(name),
        seconds=options.seconds,
        data=options.data,
        seed=options.seed,
        seeds=options.seeds,
        workers=options.processes,
    )


def figure(name: str, options: ReproduceOptions) -> Reproduced:
    """Reproduce one of Figures 1 to 3: a GPU by batch size and by load."""
    from slimsched.cli.serving.reproduce_figures import reproduce

    return reproduce(name, live=options.live, out=options.out)


def tables(name: str, options: ReproduceOptions) -> Reproduced:
    """Compare the routers of Tables III to V, and ours, on a cluster that may be real."""
    from slimsched.cli.serving.reproduce_live import reproduce_tables

    return reproduce_tables(
        options.scenario_of(options.scenario, name),
        live=options.live,
        seed=options.seed,
        data=options.data,
    )


REPRODUCTIONS: dict[str, Callable[[str, ReproduceOptions], Reproduced]] = {
    **dict.fromkeys(TABLES, serving_table),
    "tables": tables,
    **dict.fromkeys(FIGURES, figure),
    **dict.fromkeys(EXPERIMENTS, experiment),
}
