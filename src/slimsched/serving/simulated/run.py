"""Simulated runs: a scenario, a router and a seed become a trace; several of them are compared on all
cores.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter

import msgspec
from msgspec import Struct

from slimsched.core.clock import collector_paused
from slimsched.core.config import ConfigError
from slimsched.core.log import Observer
from slimsched.core.statistics import mean_of
from slimsched.serving.gateway.bounds import fluid_optimum, judges, sure_accuracy_at
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import RouterMaker, maker_of
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.telemetry.meter import Meter, Summary, Trace

# -- One router's runs, compared with others': mean figures over seeds, with their intervals.


class Compared(Struct, frozen=True, kw_only=True):
    """One router: its mean figures over seeds, half the 95 % interval of each, and the first seed's trace.

    `runs` has the figures of each seed.
    """

    summary: Summary
    ci95: dict[str, float]
    trace: Trace
    runs: tuple[Summary, ...] = ()


def gather(traces: Sequence[Trace]) -> Compared:
    """Average every figure over the runs of one router."""
    rows = [msgspec.structs.asdict(trace.summary) for trace in traces]
    mean, ci95 = dict(rows[0]), {}
    for name, first in rows[0].items():
        if isinstance(first, float | int) and len(rows) > 1:
            over_seeds = mean_of([row[name] for row in rows])
            mean[name] = over_seeds.value if isinstance(first, float) else round(over_seeds.value)
            ci95[name] = over_seeds.ci95
    runs = tuple(trace.summary for trace in traces)
    return Compared(summary=Summary(**mean), ci95=ci95, trace=traces[0], runs=runs)


# -- One simulated run: turns a scenario, a router and a seed into a trace.


def simulate(
    scenario: Scenario,
    router: str | Callable[..., Router],
    *,
    seed: int = 0,
    drain: bool = False,
    observers: Sequence[Observer] = (),
    bound_accuracy: float | None = None,
    make: RouterMaker | None = None,
    sizes: Sequence[int] = (),
) -> Trace:
    """Simulate a scenario under a router; the same seed gives the same run, event by event.

    The router is a spec, such as 'goal[p99<=60ms]' or 'my_router.py:MyRouter', or a class. A class is given
    `cluster`, `rng`, `seed` and `goal`, as far as it has parameters with these names.
    """
    router, own = maker_of(router)
    make = make or own
    cluster, load = scenario.cluster, scenario.load
    stream = load.stream(seed, cluster.models, shares=scenario.shares, sizes=sizes)
    gateway = Gateway(cluster, make(router, cluster, seed, scenario.goal), scenario.gateway)
    meter = Meter(cluster.models, from_s=load.warmup_s)
    simulated = SimulatedCluster(
        cluster=cluster,
        gateway=gateway,
        schedulers=scenario.schedulers,
        stream=stream,
        telemetry=scenario.telemetry,
        faults=scenario.faults,
        observers=(meter, *observers),
        costs=scenario.costs,
        noises=scenario.noises(seed),
        autoscale=scenario.autoscale,
    )
    if bound_accuracy is None:
        counted_per_s = stream.after(load.warmup_s) / (load.seconds - load.warmup_s)
        bound_accuracy = fluid_optimum(cluster, counted_per_s or 1.0, shares=scenario.shares or None).accuracy
    sure_accuracy = 0.0
    if judges(gateway.router, cluster):
        rate_per_s = stream.after(load.warmup_s) / (load.seconds - load.warmup_s)
        sure_accuracy = sure_accuracy_at(cluster, rate_per_s or 1.0, scenario.shares)
    began_s = perf_counter()
    with collector_paused():
        ended_s = simulated.run(load.seconds, drain=drain)
    for event in simulated.unheard():
        meter.ran(event)
    meter.came(unseen := simulated.take_unseen())
    summary = meter.summary(
        router=router,
        seconds=ended_s - load.warmup_s,
        in_system=gateway.in_system + len(unseen),
        bound_accuracy=bound_accuracy,
        sure_bound_accuracy=sure_accuracy,
        wall_s=perf_counter() - began_s,
        idle_w=_idle_w(scenario, simulated, ended_s),
        energy_source="; ".join(sorted({profile.energy_source for profile in cluster.profiles})),
    )
    return Trace(summary=summary, answers=meter.answers())


def _idle_w(scenario: Scenario, simulated: SimulatedCluster, ended_s: float) -> float:
    """Return the idle power of all devices; with an autoscaler, a stopped server draws nothing."""
    idle_w = [profile.idle_w for profile in scenario.cluster.profiles]
    if scenario.autoscale is None:
        return sum(idle_w)
    return sum(watts * simulated.ran_s(server) / ended_s for server, watts in enumerate(idle_w))


# -- Compares several routers over several seeds, on all cores.

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
