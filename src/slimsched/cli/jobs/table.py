"""Rows of job schedules as a table for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from slimsched.jobs.simulated.comparison import JobRow

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
