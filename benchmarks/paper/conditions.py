"""Conditions: where the world differs from the router's model of it, and who wins there.

Every router comes with its front: the settings that `slim router tune` found for it, all with the same budget
and on other seeds. In every condition the fronts are compared at one p99, seed by seed.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.core.pareto import unbeaten
from slimsched.core.statistics import Mean, mean_of
from slimsched.serving.domain.cluster import Fault
from slimsched.serving.learning.tune import Point, Try, run
from slimsched.serving.learning.worlds import (
    hidden_overhead,
    noisy,
    old_telemetry,
    throttled,
    weak_link,
    wrong_profiles,
)
from slimsched.serving.scenario.scenario import Scenario

ROOM = 1.05
"""Fronts are compared at the least p99 that half of the routers reach on every seed, times this."""

LEAST_P99_S = 0.075
"""… but at no less than this, near which they were tuned."""

RIVALS = os.path.relpath(Path(__file__).parents[1] / "rivals")
"""The folder of the routers that are plugins."""

FRONTS: dict[str, tuple[str, ...]] = {
    "sed": ("sed:share=0.0173", "sed:share=0.0391", "sed:share=0.0676"),
    "lp": ("lp:margin=1.4:every_s=0.069", "lp:margin=1.44:every_s=0.148", "lp:margin=1.02:every_s=0.0588"),
    "drift-plus-penalty": (
        "drift-plus-penalty:v=0.215",
        "drift-plus-penalty:v=0.518",
        "drift-plus-penalty:v=0.928",
    ),
    "goal": (
        "goal:target_s=0.00535:wait=0.0262:move=0.0434",
        "goal",
        "goal:target_s=0.0205:wait=0.00651:move=0.0273",
    ),
    "ppo": ("ppo:v=0.764", "ppo:v=1.54", "ppo:v=1.95"),
    "aset": tuple(f"{RIVALS}/aset.py:Aset:v={v}" for v in (1.54, 4.96, 6.27)),
    "kais": tuple(f"{RIVALS}/kais.py:Kais:v={v}" for v in (0.965, 1.95, 3.93)),
}
"""Three settings of each router: those of its front on `paper` whose p99 is nearest to 55, 75 and 110 ms.

`slim router tune --accuracy paper --budget 16 --seconds 4` found the fronts, with the same budget
for each; for the plugins, `python benchmarks/rivals/learn.py tune`.
"""


class Standing(Struct, frozen=True, kw_only=True):
    """How the routers stand in one condition: accuracy at one p99, mean and interval over seeds."""

    condition: str
    p99_s: float
    accuracy: dict[str, Mean | None]
    """None: on some seed the router was never as quick."""
    lead: Mean
    """How far the best is ahead of the next, seed by seed."""

    @property
    def best(self) -> str:
        """The router with the most accuracy."""
        return max(
            (name for name, mean in self.accuracy.items() if mean is not None),
            key=lambda name: _value(self.accuracy[name]),
        )


def conditions(paper: Scenario) -> dict[str, Scenario]:
    """Return the conditions, by what is wrong."""
    late = old_telemetry(throttled(paper, 0, 2.0, 1.0), 1.0)
    return {
        "as measured": paper,
        "noise × 4, drift 15 %": noisy(paper, 4.0, 0.15),
        "profiles off by 30 %": wrong_profiles(paper, (1.3, 0.77, 1.3)),
        "1 ms per batch that no profile knows": hidden_overhead(paper, 0.001),
        "server-0 throttles to half, in turns": throttled(paper, 0, 2.0, 1.0),
        "… and telemetry is 1 s old": late,
        "link of server-1 loses 3/4, in turns": weak_link(paper, 1, 4.0, 1.0),
        "server-0 dies and returns": dies_and_returns(paper, 0),
        "bursts": replace(paper, load=replace(paper.load, arrivals="bursty", shape={})),
        "a step in the load": replace(paper, load=replace(paper.load, arrivals="step", shape={})),
    }


def dies_and_returns(scenario: Scenario, server: int) -> Scenario:
    """Let a server die and return."""
    name, seconds = scenario.cluster.names[server], scenario.load.seconds
    died = Fault(server=name, at_s=0.4 * seconds, kind="kill")
    return scenario.with_faults((died, Fault(server=name, at_s=0.7 * seconds, kind="restore")))


def tries(scenario: Scenario, *, seed: int, seeds: int) -> list[Try]:
    """List the runs of one condition: every setting of every front on every seed."""
    return [
        Try(scenario, setting, seed + number)
        for settings in FRONTS.values()
        for setting in settings
        for number in range(seeds)
    ]


def standing(condition: str, points: Sequence[Point]) -> Standing:
    """Compare the fronts of one condition."""
    fronts = _by_seed(points)
    quickest = {name: max(min(p.p99_s for p in ones) for ones in by.values()) for name, by in fronts.items()}
    p99_s = max(LEAST_P99_S, ROOM * median(quickest.values()))
    scores = {name: [accuracy_at(ones, p99_s) for ones in by.values()] for name, by in fronts.items()}
    known = {
        name: [one for one in found if one is not None] for name, found in scores.items() if None not in found
    }
    order = sorted(known, key=lambda name: -sum(known[name]))
    ahead = [one - two for one, two in zip(known[order[0]], known[order[1]], strict=True)]
    return Standing(
        condition=condition,
        p99_s=p99_s,
        accuracy={name: mean_of(known[name]) if name in known else None for name in FRONTS},
        lead=mean_of(ahead),
    )


def accuracy_at(points: Sequence[Point], p99_s: float) -> float | None:
    """Return the accuracy that a front reaches at a p99, between its points; None if it is never as quick."""
    best = unbeaten(points, lambda one: (one.p99_s, float(np.nan_to_num(one.accuracy))))
    if not best or best[0].p99_s > p99_s:
        return None
    return float(np.interp(p99_s, [one.p99_s for one in best], [one.accuracy for one in best]))


def _by_seed(points: Sequence[Point]) -> Mapping[str, dict[int, list[Point]]]:
    """Group points by router and seed."""
    router_of = {setting: name for name, settings in FRONTS.items() for setting in settings}
    grouped: dict[str, dict[int, list[Point]]] = {}
    for point in points:
        grouped.setdefault(router_of[point.router], {}).setdefault(point.seed, []).append(point)
    return grouped


def _value(mean: Mean | None) -> float:
    return -1.0 if mean is None else mean.value


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
