"""The experiments behind docs/results.md: what is run, on which scenarios, with which routers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.domain.fault import Fault
from slimsched.execution.scenario import Scenario
from slimsched.execution.simulated.comparison import Compared, compare
from slimsched.learning.registry import make_router
from slimsched.routing.fluid import capacity_per_s

RIVALS = ("sed", "lp", "drift-plus-penalty", "drift-plus-penalty:v=0.5")
LOADS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.0, 1.2)
"""Shares of what the cluster can carry at its narrowest width."""

TRACES = ("azure_llm_2023_conv.csv.gz", "twitter_2021-08_req_per_s.tbz2")
BY_HAND = "goal:gain_per_s=4:wait_per_s=1:move_per_s=1.5:integral_per_s=3:ahead=0"
ABLATIONS = {
    "goal": "all of it",
    BY_HAND: "gains as they were before training",
    "goal:planner=0": "no planner: queues alone set the price",
    "goal:integral_per_s=0": "planner without its correction by the backlog",
    "goal:gain_per_s=0": "no price for a crowded server",
    "goal:wait_per_s=0.001": "own waiting and running not counted",
    "goal:move_per_s=0.01": "moves not counted",
}


class Case(Struct, frozen=True, kw_only=True):
    """One row group: a scenario and the routers tried on it."""

    label: str
    scenario: Scenario
    routers: tuple[str, ...]
    at_equal_p99: bool = False  # goal once more, with the best rival's p99 as its limit


class Run(Struct, frozen=True, kw_only=True):
    """How many seeds on how many processes."""

    seed: int
    seeds: int
    workers: int
    progress: Callable[[str], None]


def run_case(case: Case, how: Run) -> list[Compared]:
    """All routers of a case; with `at_equal_p99` also goal held to the best rival's p99."""
    found = _compare(case.scenario, case.routers, how)
    if case.at_equal_p99:
        rival = best_rival(found)
        limit_ms = 1000 * rival.summary.latency_p99_s
        found += _compare(case.scenario, (f"goal:p99_ms={limit_ms:.0f}",), how)
    return found


def best_rival(found: Iterable[Compared]) -> Compared:
    """The classical router with the most correct answers per arrived request."""
    classical = [one for one in found if not one.summary.router.startswith(("goal", "ppo"))]
    return max(classical, key=lambda one: one.summary.bound_share)


def loads(paper: Scenario, seconds: float | None) -> list[Case]:
    """From an easy load to more than the cluster can carry."""
    capacity = capacity_per_s(paper.cluster, (0.25,) * 4)
    cases = []
    for share in LOADS:
        rate = share * capacity
        length_s = seconds or float(np.clip(30_000 / rate, 1.5, 6.0))
        scenario = paper.with_load(rate_per_s=rate, seconds=length_s)
        label = f"{100 * share:.0f} % = {rate:,.0f}/s"
        cases.append(Case(label=label, scenario=scenario, routers=(*RIVALS, "goal"), at_equal_p99=True))
    return cases


def robustness(paper: Scenario, seconds: float | None, data: Path | None) -> list[Case]:
    """Other arrivals, faults and old telemetry, at the load of Table III."""
    paper = paper.with_load(seconds=seconds or 3.0)
    length_s = paper.load.seconds
    at_s, back_s = 0.3 * length_s, 0.7 * length_s
    kinds: list[tuple[str, Scenario]] = [("poisson", paper)]
    kinds += [(kind, paper.with_load(arrivals=kind)) for kind in ("bursty", "diurnal", "step")]
    for name in TRACES if data is not None else ():
        assert data is not None
        kinds.append((name.split(".")[0], paper.with_load(arrivals=str(data / "arrivals" / name))))
    first = paper.cluster.names[0]
    died = (Fault(server=first, at_s=at_s, kind="kill"), Fault(server=first, at_s=back_s, kind="restore"))
    slow = (Fault(server=first, at_s=at_s, kind="slow", slowdown=3.0),)
    kinds += [
        ("server-0 dies, returns", paper.with_faults(died)),
        ("server-0 3 × slower", paper.with_faults(slow)),
        ("telemetry 1 s old", replace(paper, telemetry=replace(paper.telemetry, delay_s=1.0))),
    ]
    return [Case(label=label, scenario=scenario, routers=(*RIVALS, "goal")) for label, scenario in kinds]


def scale(scenarios: Sequence[Scenario], seconds: float | None) -> list[Case]:
    """Q2: more servers of mixed speed; what was trained elsewhere is used as it is."""
    lengths = {"paper": 6.0, "edge-12": 5.0, "fleet-64": 0.5}
    cases = []
    for one in scenarios:
        scenario = one.with_load(seconds=seconds or lengths.get(one.name, one.load.seconds))
        routers = ("random", "sed", "drift-plus-penalty", "drift-plus-penalty:v=0.5", "goal")
        cases.append(
            Case(label=f"{one.name}, {len(one.cluster)} servers", scenario=scenario, routers=routers)
        )
    return cases


def variance(paper: Scenario, seconds: float | None) -> list[Case]:
    """Q1: is the gain kept without the spread?"""
    routers = ("random", "ppo-efficient", "ppo-balanced", "goal")
    return [Case(label="Q1", scenario=paper.with_load(seconds=seconds or 20.0), routers=routers)]


def goals(paper: Scenario, seconds: float | None) -> list[Case]:
    """Are stated goals met?"""
    stated = (
        "goal:p99_ms=60",
        "goal:p99_ms=80",
        "goal:p99_ms=150",
        "goal:min_accuracy=75.5",
        "goal:minimise=energy:min_accuracy=75",
        "goal:minimise=energy:min_accuracy=73:p99_ms=80",
        "goal:minimise=latency:min_accuracy=74",
    )
    return [Case(label="goals", scenario=paper.with_load(seconds=seconds or 10.0), routers=stated)]


def ablation(paper: Scenario, seconds: float | None) -> list[Case]:
    """What each part earns, at three loads."""
    routers = tuple(ABLATIONS)
    return [
        Case(
            label=f"{rate:,.0f}/s",
            scenario=paper.with_load(rate_per_s=rate, seconds=seconds or length_s),
            routers=routers,
        )
        for rate, length_s in ((4800.0, 6.0), (9200.0, 6.0), (25_671.0, 2.5), (51_342.0, 1.5))
    ]


def _compare(scenario: Scenario, routers: Sequence[str], how: Run) -> list[Compared]:
    return compare(
        scenario,
        routers,
        seed=how.seed,
        seeds=how.seeds,
        workers=how.workers,
        progress=how.progress,
        make=make_router,
    )
