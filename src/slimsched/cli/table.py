"""Figures of runs, as a table for people: one row per router, at most 80 columns wide."""

import re
from collections.abc import Mapping, Sequence
from math import isnan, sqrt
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slimsched.serving.gateway.goal import YIELDING, Goal
from slimsched.serving.routers.registry import split_goal
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import Compared
from slimsched.serving.telemetry.meter import Summary
from slimsched.serving.telemetry.verdict import worst

# -- Caveats: what a reader must know before trusting the figures of a run.

UNFINISHED_SHARE = 0.01
"""Share of requests under way at the end from which on a short run is worth a word."""
SHORT_S = 20.0
"""A run of this many seconds is long enough to speak for itself."""


def _caveats(runs: Sequence[Compared]) -> list[str]:
    """Return the sentences that belong under the figures of these runs."""
    rows = [one.summary for one in runs]
    return [*_short(rows), *_chance(rows, len(runs[0].runs))]


def _short(rows: Sequence[Summary]) -> list[str]:
    """Say that a short run counts against every router: what is under way at its end is not answered."""
    shares = [row.unfinished / row.arrived for row in rows if row.arrived and row.seconds < SHORT_S]
    if not shares or min(shares) < UNFINISHED_SHARE:
        return []
    return [
        f"This run is too short to judge by: after {rows[0].seconds:g} s at least {100 * min(shares):.1f} % "
        "of the requests were still under way, whatever the router. They count as not answered, also in "
        "'of bound'. Give more --seconds."
    ]


def _chance(rows: Sequence[Summary], seeds: int) -> list[str]:
    """Say why an accuracy is above the bound: fewer answers, or examples that happened to be easy."""
    plain = [row for row in rows if row.completed and not row.sure_bound_accuracy]
    above = [row for row in plain if row.accuracy > row.bound_accuracy + 1e-9]
    if not above:
        return []
    one = max(above, key=lambda row: row.accuracy - row.bound_accuracy)
    if one.accuracy_prior > one.bound_accuracy:
        return [
            f"The accuracy of {one.router} is above the bound because it counts answered requests only. The "
            "bound counts every request; 'of bound' does too."
        ]
    answers = one.completed * seeds
    half = 1.96 * sqrt(max(one.accuracy * (1.0 - one.accuracy), 1e-9) / answers)
    return [
        f"An accuracy above the bound is chance: it is counted over {answers:,} answers, which is good to "
        f"±{100 * half:.1f} points (95 %). By its plans, {one.router} expects "
        f"{100 * one.accuracy_prior:.2f} %."
    ]


NARROW = 110
"""Terminals narrower than this get the main columns only."""
LONGEST_NAME = 18
"""Characters of a router's spec per line."""


def print_runs(
    console: Console,
    scenario: Scenario,
    runs: Sequence[Compared],
    notes: Sequence[str],
    written: Sequence[Path | None],
    *,
    live: bool = False,
) -> None:
    """Print one row per router, then notes, caveats and what was written.

    Each row is judged by the goal in the brackets of its router, or by the scenario's.
    """
    console.print(f"[bold]{escape(scenario.name)}{', live' * live}: {escape(scenario.description)}[/bold]")
    goals = [split_goal(one.summary.router)[1] or scenario.goal for one in runs]
    console.print(_table(runs, goals, wide=console.width >= NARROW))
    if any(one.ci95 for one in runs):
        console.print("± is half the 95 % interval over seeds.")
    for one, its in zip(runs, goals, strict=True):
        if its is not None and len(one.runs) == 1:
            _print_verdicts(console, one.runs[0])
    for note in notes:
        console.print(note)
    for caveat in _caveats(runs):
        console.print(caveat, markup=False)
    for path in written:
        if path is not None:
            console.print(f"written: {path}")


def wrap_spec(spec: str, width: int = LONGEST_NAME) -> str:
    """Break a router's spec into lines before its brackets, options and clauses."""
    lines, line = [], ""
    for part in re.split(r"(?=\[)|(?=:)|(?<=,) ", spec):
        joined = f"{line} {part}" if line.endswith(",") else line + part
        if line and len(joined) > width:
            lines.append(line)
            joined = f" {part}"
        line = joined
    return "\n".join([*lines, line])


def _table(runs: Sequence[Compared], goals: Sequence[Goal | None], *, wide: bool) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("router\n", overflow="fold")
    names = ["accuracy\n%", "of bound\n%", "mean\nms", "p99\nms", "in time\n%"]
    stated = [goal for goal in goals if goal is not None]
    thrifty = any(goal.limits_energy or goal.objective == "energy" for goal in stated)
    names += ["answered\n%"] if wide or not thrifty else []  # there is room for one of the two
    names += ["mJ per\nanswer"] if wide or thrifty else []
    names += ["J\n(paper)", "GPU\nvar", "batch\n"] if wide else []
    for name in names + (["goal\nkept"] if stated else []):
        table.add_column(name, justify="right", no_wrap=True)
    for one, goal in zip(runs, goals, strict=True):
        row, half = one.summary, one.ci95
        cells = [
            _figure(100 * row.accuracy, 2, half, "accuracy", 100),
            _figure(100 * row.bound_share, 1, half, "bound_share", 100),
            _figure(1e3 * row.latency_mean_s, 0, half, "latency_mean_s", 1e3),
            _figure(1e3 * row.latency_p99_s, 0, half, "latency_p99_s", 1e3),
            _figure(100 * row.slo_attainment, 1),
        ]
        cells += [f"{100 * row.completed / max(1, row.arrived):.1f}"] if wide or not thrifty else []
        cells += [_figure(1e3 * row.energy_j_per_request, 2)] if wide or thrifty else []
        if wide:
            cells += [
                _figure(row.energy_paper_j, 1),
                _figure(row.gpu_var, 4),
                _figure(row.batch_mean, 1),
            ]
        cells += [_kept(goal, one.runs)] if stated else []
        table.add_row(escape(wrap_spec(row.router)), *cells)
    return table


def _kept(goal: Goal | None, runs: Sequence[Summary]) -> str:
    """Say whether the goal was kept; over several seeds, in how many runs."""
    if goal is None:
        return "–"
    words = [worst(run.verdicts) if run.verdicts else "kept" for run in runs]
    kept = words.count("kept")
    return f"{kept} of {len(runs)}" if len(set(words)) > 1 else words[0]


def _print_verdicts(console: Console, row: Summary) -> None:
    """Say of each limit whether it was kept, and the order in which limits yield if one was not."""
    for one in row.verdicts:
        console.print(f"{row.router}: {one.limit} {one.word}: {one.says}", markup=False)
    if any(one.word == "broken" for one in row.verdicts):
        console.print(f"Limits yield in this order: {YIELDING}.", markup=False)


def _figure(
    value: float, digits: int, half: Mapping[str, float] | None = None, name: str = "", scale: float = 1.0
) -> str:
    """Write a figure with half of its interval; a dash where nothing was answered."""
    if isnan(value):
        return "–"
    interval = f"±{scale * half[name]:,.{digits}f}" if half and name in half else ""
    return f"{value:,.{digits}f}{interval}"
