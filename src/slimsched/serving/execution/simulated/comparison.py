"""Compares several routers over several seeds, on all cores."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

from slimsched.core.config import ConfigError
from slimsched.serving.execution.compared import Compared, gather
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import maker_of
from slimsched.serving.telemetry.meter import Trace

AnyRouter = str | Callable[..., Router]


def compare(
    scenario: Scenario,
    routers: Sequence[AnyRouter],
    *,
    seed: int = 0,
    seeds: int = 1,
    workers: int = 1,
    drain: bool = False,
    progress: Callable[[str], None] = lambda router: None,
    pool: Executor | None = None,
) -> list[Compared]:
    """Run every router on every seed; the figures do not depend on `workers` or `pool`.

    A router is a spec or a class, as for `simulate`. With `drain`, runs go on until everything is answered.
    `progress` is told a router's name after each run.
    """
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}; give 1 or more")
    for router in routers:
        name, make = maker_of(router)
        make(name, scenario.cluster, seed, scenario.goal)  # reject an unknown router before a long run begins
    runs = [(scenario, router, seed + number, drain) for router in routers for number in range(seeds)]
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
    return [gather(traces[i * seeds : (i + 1) * seeds]) for i in range(len(routers))]


def _one(run: tuple[Scenario, AnyRouter, int, bool]) -> Trace:
    scenario, router, seed, drain = run
    return simulate(scenario, router, seed=seed, drain=drain)
