"""The experiments of docs/results.md as rows: many cases, one row per router."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from slimsched.cli.progress import count_bar
from slimsched.serving.execution.compared import Compared
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.learning import experiments
from slimsched.serving.telemetry.summary import Summary

COLUMNS = (
    "accuracy %",
    "of bound %",
    "latency ms",
    "p99 ms",
    "in time %",
    "J/request",
    "d+p at p99",
    "sed at p99",
)


def run_experiment(
    name: str, *, accuracy: str, seconds: float | None, data: Path | None, seed: int, seeds: int, workers: int
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Run all cases of an experiment; return its rows, and a function that shows them."""
    results: list[tuple[str, list[Compared]]] = []
    for case in _cases(name, accuracy, seconds, data):
        with count_bar(f"{name}: {case.label}", len(case.routers) * seeds) as bar:
            how = experiments.Run(
                seed=seed,
                seeds=seeds,
                workers=workers,
                progress=_advancing(bar),
            )
            results.append((case.label, experiments.run_case(case, how)))
        print(f"{name}: {case.label} done", file=sys.stderr)

    def show(console: Console) -> None:
        table = Table(title=name, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        for column in ("case", "router", *COLUMNS):
            text = column in ("case", "router")
            table.add_column(column, justify="left" if text else "right", no_wrap=True)
        for label, ones in results:
            for number, one in enumerate(ones):
                at_p99 = [_front(one.summary, ones, of) for of in ("drift-plus-penalty", "sed")]
                cells = [*_figures(one.summary, one.ci95), *at_p99]
                table.add_row(label if number == 0 else "", escape(one.summary.router), *cells)
        console.print(table)

    rows = {
        label: [{**msgspec.to_builtins(one.summary), "ci95": one.ci95} for one in ones]
        for label, ones in results
    }
    return {"cases": rows}, show


def _advancing(bar: Progress) -> Callable[[str], None]:
    """Return a function that moves a bar on by one run."""
    return lambda router: bar.update(bar.task_ids[0], advance=1)


def _cases(name: str, accuracy: str, seconds: float | None, data: Path | None) -> list[experiments.Case]:
    paper = load_scenario("paper", accuracy=accuracy)
    match name:
        case "loads":
            return experiments.loads(paper, seconds)
        case "robustness":
            return experiments.robustness(paper, seconds, data)
        case "scale":
            others = [load_scenario(other, accuracy=accuracy) for other in ("edge-12", "fleet-64")]
            return experiments.scale([paper, *others], seconds)
        case "variance":
            return experiments.variance(paper, seconds)
        case "goals":
            return experiments.goals(paper, seconds)
        case _:
            return experiments.ablation(paper, seconds)


def _figures(row: Summary, ci95: dict[str, float]) -> list[str]:
    def with_interval(value: float, name: str, scale: float, digits: int) -> str:
        shown, half = f"{scale * value:.{digits}f}", ci95.get(name)
        return shown if half is None else f"{shown} ±{scale * half:.{digits}f}"

    return [
        with_interval(row.accuracy, "accuracy", 100, 2),
        with_interval(row.bound_share, "bound_share", 100, 1),
        f"{1000 * row.latency_mean_s:.0f} (sd {1000 * row.latency_sd_s:.0f})",
        with_interval(row.latency_p99_s, "latency_p99_s", 1000, 0),
        with_interval(row.slo_attainment, "slo_attainment", 100, 1),
        f"{row.energy_j_per_request:.4f}",
    ]


def _front(row: Summary, ones: list[Compared], of: str) -> str:
    """Return what the settings of a classical router give at the p99 of a goal router or a learned one."""
    if not row.router.startswith(("goal", "ppo")):
        return ""
    accuracy = experiments.front_accuracy(ones, row.latency_p99_s, of=of)
    return "" if accuracy is None else f"{100 * accuracy:.2f}"
