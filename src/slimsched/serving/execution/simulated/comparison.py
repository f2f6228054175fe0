"""Compares several routers over several seeds, on all cores."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import ConfigError
from slimsched.kernel.statistics import mean_of
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.registry import maker_of
from slimsched.serving.routing.router import Router
from slimsched.serving.telemetry.summary import Summary
from slimsched.serving.telemetry.trace import Trace

AnyRouter = str | Callable[..., Router]


class Compared(Struct, frozen=True, kw_only=True):
    """One router: its mean figures over seeds, half the 95 % interval of each, and the first seed's trace.

    `runs` has the figures of each seed.
    """

    summary: Summary
    ci95: dict[str, float]
    trace: Trace
    runs: tuple[Summary, ...] = ()


def compare(
    scenario: Scenario,
    routers: Sequence[AnyRouter],
    *,
    seed: int = 0,
    seeds: int = 1,
    workers: int = 1,
    progress: Callable[[str], None] = lambda router: None,
    pool: Executor | None = None,
) -> list[Compared]:
    """Run every router on every seed; the figures do not depend on `workers` or `pool`.

    A router is a spec or a class, as for `simulate`. `progress` is told a router's name after each run.
    """
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}; give 1 or more")
    for router in routers:
        name, make = maker_of(router)
        make(name, scenario.cluster, seed, scenario.goal)  # reject an unknown router before a long run begins
    runs = [(scenario, router, seed + number) for router in routers for number in range(seeds)]
    traces: list[Trace] = []
    if workers <= 1 and pool is None:
        for run in runs:
            traces.append(_one(run))
            progress(traces[-1].summary.router)
    else:
        with pool or ProcessPoolExecutor(min(workers, len(runs)), mp_context=get_context("fork")) as running:
            for trace in running.map(_one, runs):
                traces.append(trace)
                progress(trace.summary.router)
    return [_gather(traces[i * seeds : (i + 1) * seeds]) for i in range(len(routers))]


def _one(run: tuple[Scenario, AnyRouter, int]) -> Trace:
    scenario, router, seed = run
    return simulate(scenario, router, seed=seed)


def _gather(traces: list[Trace]) -> Compared:
    """Average every figure over seeds."""
    rows = [msgspec.structs.asdict(trace.summary) for trace in traces]
    mean, ci95 = dict(rows[0]), {}
    for name, first in rows[0].items():
        if isinstance(first, float | int) and len(rows) > 1:
            over_seeds = mean_of([row[name] for row in rows])
            mean[name] = over_seeds.value if isinstance(first, float) else round(over_seeds.value)
            ci95[name] = over_seeds.ci95
    runs = tuple(trace.summary for trace in traces)
    return Compared(summary=Summary(**mean), ci95=ci95, trace=traces[0], runs=runs)
