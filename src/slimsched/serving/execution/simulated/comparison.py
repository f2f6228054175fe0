"""Compares several routers over several seeds, on all cores."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import msgspec
from msgspec import Struct

from slimsched.kernel.statistics import mean_of
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.registry import RouterMaker, make_router
from slimsched.serving.telemetry.summary import Summary
from slimsched.serving.telemetry.trace import Trace


class Compared(Struct, frozen=True, kw_only=True):
    """One router: its mean figures over seeds, half the 95 % interval of each, and the first seed's trace."""

    summary: Summary
    ci95: dict[str, float]
    trace: Trace


def compare(
    scenario: Scenario,
    routers: Sequence[str],
    *,
    seed: int,
    seeds: int,
    workers: int,
    progress: Callable[[str], None],
    make: RouterMaker = make_router,
    pool: Executor | None = None,
) -> list[Compared]:
    """Run every router on every seed; the figures do not depend on `workers` or `pool`."""
    for router in routers:
        make(
            router, scenario.cluster, seed, scenario.goal
        )  # reject an unknown router before a long run begins
    runs = [(scenario, router, seed + number, make) for router in routers for number in range(seeds)]
    traces: list[Trace] = []
    if workers <= 1 and pool is None:
        for run in runs:
            traces.append(_one(run))
            progress(run[1])
    else:
        with pool or ProcessPoolExecutor(min(workers, len(runs)), mp_context=get_context("fork")) as running:
            for run, trace in zip(runs, running.map(_one, runs), strict=True):
                traces.append(trace)
                progress(run[1])
    return [_gather(traces[i * seeds : (i + 1) * seeds]) for i in range(len(routers))]


def _one(run: tuple[Scenario, str, int, RouterMaker]) -> Trace:
    scenario, router, seed, make = run
    return simulate(scenario, router, seed=seed, make=make)


def _gather(traces: list[Trace]) -> Compared:
    """Average every figure over seeds."""
    rows = [msgspec.structs.asdict(trace.summary) for trace in traces]
    mean, ci95 = dict(rows[0]), {}
    for name, first in rows[0].items():
        if isinstance(first, float | int) and len(rows) > 1:
            over_seeds = mean_of([row[name] for row in rows])
            mean[name] = over_seeds.value if isinstance(first, float) else round(over_seeds.value)
            ci95[name] = over_seeds.ci95
    return Compared(summary=Summary(**mean), ci95=ci95, trace=traces[0])
