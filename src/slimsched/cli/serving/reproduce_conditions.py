"""`slim reproduce conditions`: tuned fronts at equal p99, wherever the world differs from the model."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.kernel.statistics import Mean
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.learning.conditions import FRONTS, Standing, conditions, standing, tries
from slimsched.serving.learning.tuning import run


def reproduce_conditions(
    paper: Scenario, *, seed: int, seeds: int, workers: int, out: Path | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Run every condition; with `out`, write the points of all runs there, one file per condition."""
    standings = []
    for number, (label, scenario) in enumerate(conditions(paper).items()):
        points = run(tries(scenario, seed=seed, seeds=seeds), workers=workers)
        standings.append(standing(label, points))
        print(f"conditions: {label}: {_line(standings[-1])}", file=sys.stderr, flush=True)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"condition-{number}.json").write_bytes(msgspec.json.encode(points))

    def show(console: Console) -> None:
        table = Table(title="accuracy %, at equal p99", box=SIMPLE_HEAD, show_edge=False)
        for column in ("condition", "p99 ms", *FRONTS, "best", "ahead of the next by"):
            table.add_column(column, justify="left" if column in ("condition", "best") else "right")
        for one in standings:
            cells = [_cell(one.accuracy[name]) for name in FRONTS]
            table.add_row(one.condition, f"{1000 * one.p99_s:.0f}", *cells, one.best, _cell(one.lead))
        console.print(table)

    return {"standings": [msgspec.to_builtins(one) | {"best": one.best} for one in standings]}, show


def _cell(mean: Mean | None) -> str:
    return "never as quick" if mean is None else f"{100 * mean.value:.2f} ±{100 * mean.ci95:.2f}"


def _line(one: Standing) -> str:
    return f"p99 {1000 * one.p99_s:.0f} ms, " + ", ".join(f"{n} {_cell(m)}" for n, m in one.accuracy.items())
