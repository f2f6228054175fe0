"""Simulated runs: a scenario, a router and a seed become a trace; several are compared on all cores."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter
from typing import TypeVar

import msgspec
from msgspec import Struct

from slimsched.core.clock import collector_paused
from slimsched.core.config import ConfigError
from slimsched.core.log import Observer
from slimsched.core.statistics import mean_of
from slimsched.serving.gateway.bounds import BoundCurve, fluid_optimum, judges
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import maker_of, split_goal
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.telemetry.live_view import Recorder, Watch
from slimsched.serving.telemetry.meter import Meter, Summary, Trace


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


def simulate(
    scenario: Scenario,
    router: str | Callable[..., Router],
    *,
    seed: int = 0,
    drain: bool = False,
    observers: Sequence[Observer] = (),
    record: bool = False,
    bound_accuracy: float | None = None,
    sizes: Sequence[int] = (),
) -> Trace:
    """Simulate a scenario under a router; the same seed gives the same run, event by event.

    The router is a spec, such as 'goal[p99<=60ms]' or 'my_router.py:MyRouter', or a class or a function. It
    is given `cluster`, `rng`, `seed` and `goal`, as far as it has parameters with these names. With
    `record`, the trace has frames.
    """
    router, make = maker_of(router)
    cluster, load = scenario.cluster, scenario.load
    stream = load.stream(seed, cluster.models, shares=scenario.shares, sizes=sizes)
    gateway = Gateway(cluster, make(router, cluster, seed, scenario.goal), scenario.gateway)
    meter = Meter(cluster.models, from_s=load.warmup_s)
    meter.watch = Watch(split_goal(router)[1] or scenario.goal, cluster, load.warmup_s)
    observers, recorder = [meter, *observers], None
    if record:
        recorder = Recorder(
            gateway,
            router,
            load.seconds,
            BoundCurve(cluster, scenario.shares, sure=judges(gateway.router, cluster)),
        )
        observers.append(recorder)
    simulated = SimulatedCluster(scenario, gateway, stream, seed=seed, observers=observers)
    rate_per_s = stream.after(load.warmup_s) / (load.seconds - load.warmup_s) or 1.0
    if bound_accuracy is None:
        bound_accuracy = fluid_optimum(cluster, rate_per_s, shares=scenario.shares).accuracy
    sure_accuracy = 0.0
    if judges(gateway.router, cluster):
        sure_accuracy = fluid_optimum(cluster, rate_per_s, shares=scenario.shares, sure=True).accuracy
    began_s = perf_counter()
    with collector_paused():
        ended_s = simulated.run(load.seconds, drain=drain)
    for event in simulated.unheard():
        meter.count_batch(event)
    meter.count_arrivals(unseen := simulated.take_unseen())
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
    return Trace(summary=summary, answers=meter.answers(), frames=recorder.frames if recorder else ())


def _idle_w(scenario: Scenario, simulated: SimulatedCluster, ended_s: float) -> float:
    """Return the idle power of all devices; with an autoscaler, a stopped server draws nothing."""
    idle_w = [profile.idle_w for profile in scenario.cluster.profiles]
    if scenario.autoscale is None:
        return sum(idle_w)
    return sum(watts * simulated.ran_s(server) / ended_s for server, watts in enumerate(idle_w))


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
    for trace in on_all_cores(_one, runs, workers=workers, pool=pool):
        traces.append(trace)
        progress(trace.summary.router)
    return [gather(traces[i * seeds : (i + 1) * seeds]) for i in range(len(routers))]


Task = TypeVar("Task")
Result = TypeVar("Result")


def on_all_cores(
    work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int, pool: Executor | None = None
) -> Iterator[Result]:
    """Do tasks in `workers` processes, in `pool`, or with one worker here; yield their results in order."""
    if workers <= 1 and pool is None:
        yield from map(work, tasks)
        return
    with pool or ProcessPoolExecutor(min(workers, len(tasks)), mp_context=get_context("fork")) as running:
        yield from running.map(work, tasks)


def _one(run: tuple[Scenario, AnyRouter, int, bool]) -> Trace:
    scenario, router, seed, drain = run
    return simulate(scenario, router, seed=seed, drain=drain)
