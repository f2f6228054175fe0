"""Tables III to V of the paper, and the same routers on another cluster, live if asked."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.cli.progress import count_bar
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import Compared, compare
from slimsched.serving.telemetry.meter import Summary

if TYPE_CHECKING:
    from slimsched.serving.measure.live_runs import LiveRow

ROWS = ("accuracy, %", "latency, s", "energy (paper's), J", "GPU var", "images answered", "p99, s")

TRAINED = 3
"""Each policy was trained with this many seeds; a column is their mean, with the least and the most."""


class PaperTable(Struct, frozen=True, kw_only=True):
    """One table of the paper: its printed figures, and what stands beside them here."""

    title: str
    paper: tuple[str, ...]
    here: dict[str, tuple[str, ...]]
    """The columns, each with its routers: one for each seed of training."""
    note: str = ""


def _constant(goal: str) -> tuple[str, ...]:
    return (f"{Path(__file__).with_name('yardstick.py')}:best:weighting={goal}",)


def _trained(policy: str, more: str = "") -> tuple[str, ...]:
    return tuple(f"ppo:{policy}-{seed}{more}" for seed in range(TRAINED))


TABLES = {
    "table3": PaperTable(
        title="Table III: random + greedy",
        paper=("74.43", "8.979 (sd 7.302)", "1967.94 (sd 1629.53)", "0.0433 (sd 0.0216)", "250,906", ""),
        here={"random": ("random",)},
        note="--accuracy paper:nearest fills plans that the paper did not measure by its own rule",
    ),
    "table4": PaperTable(
        title="Table IV: PPO, efficiency-heavy",
        paper=("70.30", "0.318 (sd 0.755)", "52.85 (sd 131.46)", "0.0633 (sd 0.0571)", "420,538", ""),
        here={
            "PPO, state (1)": _trained("paper-efficient"),
            "PPO, state (1), latency only": _trained("paper-latency"),
            "best constant policy": _constant("efficient"),
            "PPO that sees the head, v=1": _trained("head", ":v=1"),
        },
        note="a summary of the paper by others gives 72.22 % here; no table of the paper has that figure",
    ),
    "table5": PaperTable(
        title="Table V: PPO, balanced",
        paper=("75.26", "6.100 (sd 11.673)", "1085.41 (sd 2125.62)", "0.0815 (sd 0.0374)", "196,947", ""),
        here={
            "PPO, state (1)": _trained("paper-balanced"),
            "best constant policy": _constant("balanced"),
            "PPO that sees the head, v=3": _trained("head", ":v=3"),
        },
        note="that summary gives reductions of 49.31 % and 52.58 %; the table's own are 32.1 % and 44.8 %",
    ),
}


def reproduce_table(
    name: str, scenario: Scenario, *, seed: int, seeds: int, workers: int
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Run the columns of a table; return its rows, and a function that shows them."""
    table = TABLES[name]
    routers = [router for column in table.here.values() for router in column]
    with count_bar(f"{name}: {scenario.name}", len(routers) * seeds) as bar:
        compared_all = compare(
            scenario,
            routers,
            seed=seed,
            seeds=seeds,
            workers=workers,
            progress=lambda router: bar.update(bar.task_ids[0], advance=1, description=f"{name}: {router}"),
        )
    runs = iter(compared_all)
    compared = {label: [next(runs) for _ in column] for label, column in table.here.items()}
    columns = {label: dict(zip(ROWS, _cells(ones), strict=True)) for label, ones in compared.items()}

    def show(console: Console) -> None:
        shown = Table("", "paper", title=table.title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        for label in columns:
            shown.add_column(label)
        for row, theirs in zip(ROWS, table.paper, strict=True):
            shown.add_row(row, theirs, *(column[row] for column in columns.values()))
        console.print(shown)
        if table.note:
            console.print(f"[dim]{table.note}[/dim]")

    rows = {
        "paper": dict(zip(ROWS, table.paper, strict=True)),
        "here": columns,
        "summaries": {
            label: [{**msgspec.to_builtins(one.summary), "ci95": one.ci95} for one in ones]
            for label, ones in compared.items()
        },
    }
    return rows, show


def _cells(ones: Sequence[Compared]) -> list[str]:
    """Return the figures of one column: means over seeds of training, and their range."""

    def mean(figure: Callable[[Summary], float]) -> float:
        return sum(figure(one.summary) for one in ones) / len(ones)

    def cell(figure: Callable[[Summary], float], digits: int, spread: Callable[[Summary], float]) -> str:
        values = [figure(one.summary) for one in ones]
        ranged = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
        return f"{mean(figure):.{digits}f} (sd {mean(spread):.{digits}f}){ranged}"

    accuracies = [100 * one.summary.accuracy for one in ones]
    ranged = f" ({min(accuracies):.2f} to {max(accuracies):.2f})" if len(ones) > 1 else ""
    return [
        f"{sum(accuracies) / len(ones):.2f}{ranged}",
        cell(lambda row: row.latency_mean_s, 3, lambda row: row.latency_sd_s),
        cell(lambda row: row.energy_paper_j, 2, lambda row: row.energy_paper_sd_j),
        cell(lambda row: row.gpu_var, 4, lambda row: row.gpu_var_sd),
        f"{mean(lambda row: row.completed):,.0f} of {mean(lambda row: row.arrived):,.0f}",
        f"{mean(lambda row: row.latency_p99_s):.3f}",
    ]


ROUTERS = ("random", "ppo-efficient", "ppo-balanced", "ppo", "drift-plus-penalty:v=0.7", "goal")
COLUMNS = ("accuracy %", "latency ms", "p99 ms", "answered %", "in time %", "J/request", "W")


def reproduce_tables(
    scenario: Scenario, *, live: bool, seed: int, data: Path | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Return every router's figures, live beside simulated, and a function that shows them."""
    measured: dict[str, LiveRow] = {}
    if live:
        from slimsched.cli.serving.scenario import run_in_turn

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
            table.add_row(
                "" if router in measured else router, "simulated", *_summary_cells(simulated[router])
            )
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
    from slimsched.serving.simulated.run import simulate

    print(f"simulating: {router}", file=sys.stderr)
    return simulate(scenario, router, seed=seed).summary


def _figures(row: "LiveRow") -> dict[str, Any]:
    rest = {name: getattr(row, name) for name in row.__struct_fields__ if name != "trace"}
    return {**rest, "summary": msgspec.to_builtins(row.summary)}


def _summary_cells(row: Summary) -> list[str]:
    return [
        f"{100 * row.accuracy:.2f}",
        f"{1000 * row.latency_mean_s:.1f} (sd {1000 * row.latency_sd_s:.1f})",
        f"{1000 * row.latency_p99_s:.1f}",
        f"{100 * row.completed / row.arrived:.1f}",
        f"{100 * row.slo_attainment:.1f}",
        f"{row.energy_j_per_request:.5f}",
        "",
    ]


def _live_cells(row: "LiveRow", idle_w: float) -> list[str]:
    """Count answers while requests still arrived; energy is the counter's, above idle, per answer."""
    summary = row.summary
    cells = _summary_cells(summary)
    if row.accuracy_on_images is not None:
        cells[0] = f"{100 * row.accuracy_on_images:.2f}"
    cells[3] = f"{100 * row.answered_meanwhile / summary.arrived:.1f}"
    if row.energy_j > 0:
        cells[5] = f"{row.energy_j_per_request(idle_w):.5f}"
        cells[6] = f"{row.energy_j / row.wall_s:.0f}"
    return cells
