"""The paper's tables and figures, ours beside theirs. A new one is one function.

python benchmarks/paper/run.py table3 table4 table5
make paper WHAT="fig1 fig2 fig3"
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct
from rich.console import Console
from tables import TABLES, reproduce_table

from slimsched.cli.options import AsJson, Seed, line_of, need, with_options
from slimsched.core.config import Count, RunSeconds, UnknownNameError, WorkerCount
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario


class ReproduceOptions(Struct, frozen=True, kw_only=True):
    """Options of every reproduction."""

    accuracy: Annotated[str | None, "Accuracy table: measured, paper or paper:nearest."] = None
    seconds: Annotated[RunSeconds | None, "Length of the run in simulated seconds."] = None
    seed: Seed = 0
    seeds: Annotated[Count, typer.Option("--seeds", help="Runs per router; figures are means.")] = 5
    workers: Annotated[WorkerCount, "Processes to use; 0 means one per core."] = 0
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", envvar="SLIM_DATA", help="Folder with arrivals/ (real traces), for robustness."
        ),
    ] = None
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario", help="Scenario of `tables` (h200 if left out) or `algorithm1` (algorithm1-cpu)."
        ),
    ] = None
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
        return self.accuracy or ("measured" if name in ("tables", "algorithm1") or self.model else "paper")

    def scenario_of(self, scenario: str, name: str) -> Scenario:
        """Return a scenario with the model, the accuracies and the length that a reproduction asks for."""
        models = [self.model] if self.model else []
        loaded = load_scenario(scenario, accuracy=self.accuracy_for(name), models=models)
        return loaded.with_load(seconds=self.seconds)


FIGURES = ("fig1", "fig2", "fig3")
EXPERIMENTS = ("loads", "robustness", "scale", "variance", "goals", "ablation")
NAMES = (*TABLES, "tables", *FIGURES, "algorithm1", *EXPERIMENTS, "conditions")


@with_options
def command(
    what: Annotated[list[str], typer.Argument(help=f"{', '.join(NAMES)} (docs/results.md).")],
    options: ReproduceOptions,
    as_json: AsJson = False,
) -> None:
    """Reproduce parts of the paper and print them beside its figures.

    Examples:

      python benchmarks/paper/run.py table3 table4 table5

      python benchmarks/paper/run.py table3 --seeds 1 --seconds 10 --json

      python benchmarks/paper/run.py fig1 fig2 fig3 --out figures

      python benchmarks/paper/run.py tables --scenario h200 --live

      python benchmarks/paper/run.py algorithm1 --live --out figures

      python benchmarks/paper/run.py table3 table4 table5 --model slimvit
    """
    for name in what:
        if name not in REPRODUCTIONS:
            raise UnknownNameError("reproduction", name, list(REPRODUCTIONS))
    if options.live:
        need("torch")
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
    """Reproduce one of Tables III to V: the paper's figures, its PPO here, and PPO that sees the head."""
    return reproduce_table(
        name,
        options.scenario_of("paper", name),
        seed=options.seed,
        seeds=options.seeds,
        workers=options.processes,
    )


def experiment(name: str, options: ReproduceOptions) -> Reproduced:
    """Run an experiment: the paper's open questions, and what the goal router claims."""
    from experiments import run_experiment

    return run_experiment(
        name,
        accuracy=options.accuracy_for(name),
        seconds=options.seconds,
        data=options.data,
        seed=options.seed,
        seeds=options.seeds,
        workers=options.processes,
    )


def conditions(name: str, options: ReproduceOptions) -> Reproduced:
    """Compare the tuned fronts of routers where the world differs from their model."""
    from conditions import reproduce_conditions

    seconds = options.seconds or 4.0
    paper = options.scenario_of("paper", name).with_load(seconds=seconds, warmup_s=seconds / 4)
    return reproduce_conditions(
        paper, seed=options.seed, seeds=options.seeds, workers=options.processes, out=options.out
    )


def figure(name: str, options: ReproduceOptions) -> Reproduced:
    """Reproduce one of Figures 1 to 3: a GPU by batch size and by load."""
    from figures import reproduce

    if options.out is not None:
        need("matplotlib")
    return reproduce(name, live=options.live, out=options.out)


def tables(name: str, options: ReproduceOptions) -> Reproduced:
    """Compare the routers of Tables III to V, and ours, on a cluster that may be real."""
    from tables import reproduce_tables

    return reproduce_tables(
        options.scenario_of(options.scenario or "h200", name),
        live=options.live,
        seed=options.seed,
        data=options.data,
    )


def algorithm1(name: str, options: ReproduceOptions) -> Reproduced:
    """Show Algorithm 1 at work: what a server loads, refuses to load and unloads as the load changes."""
    from algorithm1 import reproduce_algorithm1

    if options.out is not None:
        need("matplotlib")
    return reproduce_algorithm1(
        options.scenario_of(options.scenario or "algorithm1-cpu", name),
        live=options.live,
        seed=options.seed,
        data=options.data,
        out=options.out,
    )


REPRODUCTIONS: dict[str, Callable[[str, ReproduceOptions], Reproduced]] = {
    **dict.fromkeys(TABLES, serving_table),
    "tables": tables,
    **dict.fromkeys(FIGURES, figure),
    "algorithm1": algorithm1,
    **dict.fromkeys(EXPERIMENTS, experiment),
    "conditions": conditions,
}


def main() -> int:
    """Run what the command line names; an error becomes one line and an exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app()
    except Exception as error:
        known = line_of(error, "serve")
        if known is None:
            raise
        print(f"run.py: {known[0]}", file=sys.stderr)
        return known[1]
    return 0


if __name__ == "__main__":
    sys.exit(main())
