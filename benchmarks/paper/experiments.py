"""The experiments behind docs/results.md: their scenarios and routers, and their rows."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from slimsched.cli.progress import count_bar
from slimsched.serving.domain.cluster import Fault
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import Compared, compare
from slimsched.serving.telemetry.meter import Summary

FRONT = tuple(f"drift-plus-penalty:v={v}" for v in (0.1, 0.2, 0.35, 0.5, 1))
"""The strongest classical router at five settings, which span its trade-off of accuracy against p99."""

WIDER = ("drift-plus-penalty:v=2", "drift-plus-penalty:v=5")
"""Two more settings, for low loads."""

RIVALS = ("sed:share=0.0578", "drift-plus-penalty:v=0.612")
"""Tuned on `paper`: the best around a p99 of 75 ms (`slim router tune --accuracy paper --budget 8`)."""

SED_FRONT = tuple(f"sed:share={share}" for share in (0.03, 0.06, 0.12, 0.25, 0.5))
"""Shortest expected delay at five settings; 0.5 is its default."""

ONE_POLICY = ("ppo:v=2", "ppo:v=20")
"""One policy file, quick and thorough."""

ADAPTIVE = ("ppo", "ppo[p99<=100ms]", "goal", "goal[p99<=100ms]")
"""Without and with a limit that the worth of accuracy follows: the paper's "adaptive reward scaling"."""

AT_LIMITS = ("goal", "goal[p99<=60ms]", "goal[p99<=100ms]")
LOADS = {0.05: 8, 0.1: 7, 0.2: 6, 0.35: 5, 0.5: 4, 0.7: 3.5, 0.9: 3.2, 1.0: 3.2, 1.2: 3.2}
"""Loads as shares of the cluster's capacity at its narrowest plan, and the length of each run in seconds."""

WARMUP_S = 2.0
"""The warm-up that all figures leave out, in which instances load and prices settle."""

TRACES = ("azure_llm_2023_conv.csv.gz", "twitter_2021-08_req_per_s.tbz2")
ABLATIONS = {
    "goal": "everything on",
    "goal:planner=0": "no planner: queues alone set the price",
    "goal:integral_per_s=0": "planner without its correction by the backlog",
    "goal:crowd_per_s=0": "no price for a crowded server",
    "goal:wait=0.0001": "the request's own waiting and running not counted",
    "goal:move=0.0001": "moves not counted",
    "goal:cold=0": "cold choices asked for like warm ones",
}


class Case(Struct, frozen=True, kw_only=True):
    """One group of rows: a scenario and the routers to run on it."""

    label: str
    scenario: Scenario
    routers: tuple[str, ...]
    drain: bool = False  # go on until every request is answered, so that none is cut off in a short run


class Run(Struct, frozen=True, kw_only=True):
    """How to run a case: the seeds and the number of processes."""

    seed: int
    seeds: int
    workers: int
    progress: Callable[[str], None]


def run_case(case: Case, how: Run) -> list[Compared]:
    """Run all routers of a case."""
    return compare(
        case.scenario,
        case.routers,
        seed=how.seed,
        seeds=how.seeds,
        workers=how.workers,
        drain=case.drain,
        progress=how.progress,
    )


def front_accuracy(compared: Iterable[Compared], p99_s: float, *, of: str) -> float | None:
    """Interpolate the accuracy of a router at a p99; None outside the range of its settings."""
    rows = [one.summary for one in compared if one.summary.router.partition(":")[0] == of]
    best: list[tuple[float, float]] = []  # (p99, accuracy), dominated settings left out
    for row in sorted(rows, key=lambda row: row.latency_p99_s):
        if not best or row.accuracy > best[-1][1]:
            best.append((row.latency_p99_s, row.accuracy))
    if not best or not best[0][0] <= p99_s <= max(row.latency_p99_s for row in rows):
        return None
    return float(np.interp(p99_s, [p99 for p99, _ in best], [accuracy for _, accuracy in best]))


def loads(paper: Scenario, seconds: float | None) -> list[Case]:
    """Return cases from an easy load to more than the cluster can carry."""
    capacity = capacity_per_s(paper.cluster, paper.cluster.models[0].spec.narrowest)
    return [
        Case(
            label=f"{100 * share:.0f} % = {share * capacity:,.0f}/s",
            scenario=_timed(paper.with_load(rate_per_s=share * capacity), seconds or length_s),
            routers=(*FRONT, *(WIDER if share <= 0.2 else ()), *AT_LIMITS),
        )
        for share, length_s in LOADS.items()
    ]


def _timed(scenario: Scenario, seconds: float) -> Scenario:
    """Return a scenario of this length, with a warm-up that figures leave out."""
    return scenario.with_load(seconds=seconds, warmup_s=min(WARMUP_S, 0.5 * seconds))


def robustness(paper: Scenario, seconds: float | None, data: Path | None) -> list[Case]:
    """Return cases with other arrivals, faults and old telemetry, at the load of Table III."""
    paper = _timed(paper, seconds or 8.0)
    length_s = paper.load.seconds
    at_s, back_s = 0.3 * length_s, 0.7 * length_s
    kinds: list[tuple[str, Scenario]] = [("poisson", paper)]
    kinds += [(kind, paper.with_load(arrivals=kind)) for kind in ("bursty", "diurnal", "step")]
    for name in TRACES if data is not None else ():
        assert data is not None
        trace = str(data / "arrivals" / name)
        kinds.append((name.split(".")[0], paper.with_load(arrivals=trace, rate_per_s=paper.load.rate_per_s)))
    first = paper.cluster.names[0]
    died = (Fault(server=first, at_s=at_s, kind="kill"), Fault(server=first, at_s=back_s, kind="restore"))
    slow = (Fault(server=first, at_s=at_s, kind="slow", slowdown=3.0),)
    kinds += [
        ("server-0 dies, returns", paper.with_faults(died)),
        ("server-0 3 × slower", paper.with_faults(slow)),
        ("telemetry 1 s old", replace(paper, telemetry=replace(paper.telemetry, delay_s=1.0))),
    ]
    routers = (*RIVALS, "goal", ONE_POLICY[0])
    return [Case(label=label, scenario=scenario, routers=routers) for label, scenario in kinds]


def scale(scenarios: Sequence[Scenario], seconds: float | None) -> list[Case]:
    """Q2: how do routers that were trained elsewhere do on more servers of mixed speed?

    All requests count: runs have no warm-up and go on until everything is answered. In runs this short, the
    requests under way at either end would otherwise decide the share of the bound.
    """
    lengths = {"paper": 5.0, "edge-12": 14.0, "fleet-64": 0.5}
    routers = (*SED_FRONT, *FRONT[1:], WIDER[0], "goal", *ONE_POLICY)
    return [
        Case(
            label=f"{one.name}, {len(one.cluster)} servers",
            scenario=one.with_load(seconds=seconds or lengths.get(one.name), warmup_s=0.0),
            routers=routers,
            drain=True,
        )
        for one in scenarios
    ]


def variance(paper: Scenario, seconds: float | None) -> list[Case]:
    """Q1: does the gain remain when the spread is small? In brackets, the reward adapts to a limit."""
    routers = ("random", "ppo-efficient", "ppo-balanced", *ADAPTIVE)
    return [Case(label="Q1", scenario=paper.with_load(seconds=seconds or 20.0), routers=routers)]


def goals(paper: Scenario, seconds: float | None) -> list[Case]:
    """Return a case that shows whether stated goals are met."""
    stated = (
        "goal[p99<=60ms]",
        "goal[p99<=80ms]",
        "goal[p99<=150ms]",
        "goal[accuracy>=75.5]",
        "goal[accuracy>=75, min energy]",
        "goal[accuracy>=73, p99<=80ms, min energy]",
        "goal[accuracy>=74, min latency]",
    )
    return [Case(label="goals", scenario=_timed(paper, seconds or 8.0), routers=stated)]


def ablation(paper: Scenario, seconds: float | None) -> list[Case]:
    """Return cases that show what each part of the goal router adds, at four loads."""
    routers = tuple(ABLATIONS)
    return [
        Case(
            label=f"{rate:,.0f}/s",
            scenario=_timed(paper.with_load(rate_per_s=rate), seconds or length_s),
            routers=routers,
        )
        for rate, length_s in ((4800.0, 6.0), (9200.0, 6.0), (25_671.0, 4.0), (51_342.0, 3.2))
    ]


COLUMNS = (
    "accuracy %",
    "of bound %",
    "latency ms",
    "p99 ms",
    "in time %",
    "J/request",
    "paper's J",
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
            how = Run(
                seed=seed,
                seeds=seeds,
                workers=workers,
                progress=_advancing(bar),
            )
            results.append((case.label, run_case(case, how)))
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


def _cases(name: str, accuracy: str, seconds: float | None, data: Path | None) -> list[Case]:
    paper = load_scenario("paper", accuracy=accuracy)
    match name:
        case "loads":
            return loads(paper, seconds)
        case "robustness":
            return robustness(paper, seconds, data)
        case "scale":
            others = [load_scenario(other, accuracy=accuracy) for other in ("edge-12", "fleet-64")]
            return scale([paper, *others], seconds)
        case "variance":
            return variance(paper, seconds)
        case "goals":
            return goals(paper, seconds)
        case _:
            return ablation(paper, seconds)


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
        f"{row.energy_paper_j:.1f} (sd {row.energy_paper_sd_j:.1f})",
    ]


def _front(row: Summary, ones: list[Compared], of: str) -> str:
    """Return what the settings of a classical router give at the p99 of a goal router or a learned one."""
    if not row.router.startswith(("goal", "ppo")):
        return ""
    accuracy = front_accuracy(ones, row.latency_p99_s, of=of)
    return "" if accuracy is None else f"{100 * accuracy:.2f}"
