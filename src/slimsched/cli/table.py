"""Figures of runs, as a table for people."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slimsched.serving.telemetry.summary import Summary

NARROW = 110
"""Terminals narrower than this get the main columns only."""


def print_summaries(
    console: Console, rows: Sequence[Summary], title: str, intervals: Sequence[Mapping[str, float]] = ()
) -> None:
    """Print one row per router; `intervals` holds half of the 95 % interval of each figure over seeds."""
    wide = console.width >= NARROW
    console.print(f"[bold]{escape(title)}[/bold]")
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("router", no_wrap=True)
    names = ["accuracy", "of bound", "latency", "p99", "in time", "answered"]
    for name in names + (["J/request", "J (paper)", "GPU var", "batch"] if wide else []):
        table.add_column(name, justify="right", no_wrap=True)
    for row, half in zip(rows, intervals or [{}] * len(rows), strict=True):
        cells = [
            f"{100 * row.accuracy:.2f}{_half(half, 'accuracy', 100, 2)} %",
            f"{100 * row.bound_share:.1f}{_half(half, 'bound_share', 100, 1)} %",
            _spread(row.latency_mean_s, row.latency_sd_s),
            _seconds(row.latency_p99_s, half),
            f"{100 * row.slo_attainment:.1f} %",
            f"{100 * row.completed / max(1, row.arrived):.1f} %",
        ]
        if wide:
            cells += [
                f"{row.energy_j_per_request:.4f}",
                f"{row.energy_paper_j:.1f}",
                f"{row.gpu_var:.4f}",
                f"{row.batch_mean:.1f}",
            ]
        table.add_row(escape(row.router), *cells)
    console.print(table)


def _half(half: Mapping[str, float], name: str, scale: float, digits: int) -> str:
    return f" ±{scale * half[name]:.{digits}f}" if name in half else ""


def _seconds(value: float, half: Mapping[str, float]) -> str:
    if value >= 1:
        return f"{value:.2f}{_half(half, 'latency_p99_s', 1, 2)} s"
    return f"{1000 * value:.0f}{_half(half, 'latency_p99_s', 1000, 0)} ms"


def _spread(mean_s: float, sd_s: float) -> str:
    return f"{mean_s:.2f}±{sd_s:.2f} s" if mean_s >= 1 else f"{1000 * mean_s:.0f}±{1000 * sd_s:.0f} ms"
