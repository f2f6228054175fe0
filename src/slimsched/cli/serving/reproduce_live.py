"""Tables III to V on another cluster, live if asked: one router after another on the same servers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.cli.serving.live_runs import run_in_turn
from slimsched.serving.execution.live.live_comparison import LiveRow
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.telemetry.summary import Summary

ROUTERS = ("random", "ppo-efficient", "ppo-balanced", "ppo", "drift-plus-penalty:v=0.7", "goal")
COLUMNS = ("accuracy %", "latency ms", "p99 ms", "answered %", "in time %", "J/request", "W")


def reproduce_tables(
    scenario: Scenario, *, live: bool, seed: int, data: Path | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Return every router's figures, live beside simulated, and a function that shows them."""
    measured: dict[str, LiveRow] = {}
    if live:
        found = run_in_turn(scenario, ROUTERS, seed=seed, rounds=1, data=data, progress=_say)
        measured = {row.router: row for row in found}
    simulated = {router: _simulated(scenario, router, seed) for router in ROUTERS}
    idle_w = max(profile.idle_w for profile in scenario.cluster.profiles)

    def show(console: Console) -> None:
        title = f"{scenario.name}, {scenario.load.rate_per_s:,.0f} requests/s for {scenario.load.seconds:g} s"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        for column in ("router", "", *COLUMNS):
            table.add_column(column, justify="left" if column in ("router", "") else "right")
        for router in ROUTERS:
            if router in measured:
                table.add_row(router, "live", *_live_cells(measured[router], idle_w))
            table.add_row("" if router in measured else router, "simulated", *_cells(simulated[router]))
        console.print(table)

    rows = {
        "scenario": scenario.name,
        "rate_per_s": scenario.load.rate_per_s,
        "seconds": scenario.load.seconds,
        "live": [_figures(row) for row in measured.values()],
        "simulated": msgspec.to_builtins(list(simulated.values())),
    }
    return rows, show


def _say(what: str) -> None:
    print(f"live: {what}", file=sys.stderr)


def _simulated(scenario: Scenario, router: str, seed: int) -> Summary:
    from slimsched.serving.execution.simulated.simulation import simulate

    print(f"simulating: {router}", file=sys.stderr)
    return simulate(scenario, router, seed=seed).summary


def _figures(row: LiveRow) -> dict[str, Any]:
    rest = {name: getattr(row, name) for name in row.__struct_fields__ if name != "trace"}
    return {**rest, "summary": msgspec.to_builtins(row.summary)}


def _cells(row: Summary) -> list[str]:
    return [
        f"{100 * row.accuracy:.2f}",
        f"{1000 * row.latency_mean_s:.1f} (sd {1000 * row.latency_sd_s:.1f})",
        f"{1000 * row.latency_p99_s:.1f}",
        f"{100 * row.completed / row.arrived:.1f}",
        f"{100 * row.slo_attainment:.1f}",
        f"{row.energy_j_per_request:.5f}",
        "",
    ]


def _live_cells(row: LiveRow, idle_w: float) -> list[str]:
    """Count answers while requests still arrived; energy is the counter's, above idle, per answer."""
    summary = row.summary
    cells = _cells(summary)
    if row.accuracy_on_images is not None:
        cells[0] = f"{100 * row.accuracy_on_images:.2f}"
    cells[3] = f"{100 * row.answered_meanwhile / summary.arrived:.1f}"
    if row.energy_j > 0:
        cells[5] = f"{row.energy_j_per_request(idle_w):.5f}"
        cells[6] = f"{row.energy_j / row.wall_s:.0f}"
    return cells
