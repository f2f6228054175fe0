"""One simulated run: turns a scenario, a router and a seed into a trace."""

from collections.abc import Callable, Sequence
from time import perf_counter

from slimsched.core.clock import collector_paused
from slimsched.core.log import Observer
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.cluster import SimulatedCluster
from slimsched.serving.gateway.bounds import fluid_optimum, judges, sure_accuracy_at
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import RouterMaker, maker_of
from slimsched.serving.telemetry.meter import Meter, Trace


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
