"""One simulated run: scenario + router + seed → trace and figures."""

from collections.abc import Sequence
from time import perf_counter

from slimsched.kernel.collector import collector_paused
from slimsched.kernel.observer import Observer
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.cluster import SimulatedCluster
from slimsched.serving.execution.simulated.crowding import Crowding
from slimsched.serving.routing.fluid import fluid_optimum
from slimsched.serving.routing.gateway import Gateway
from slimsched.serving.routing.registry import RouterMaker, make_router
from slimsched.serving.telemetry.meter import Meter
from slimsched.serving.telemetry.trace import Trace


def simulate(
    scenario: Scenario,
    router: str,
    *,
    seed: int = 0,
    drain: bool = False,
    observers: Sequence[Observer] = (),
    bound_accuracy: float | None = None,
    make: RouterMaker = make_router,
    images: int | None = None,
) -> Trace:
    """Simulate a scenario under a router; the same seed gives the same run, event by event."""
    cluster, load = scenario.cluster, scenario.load
    stream = load.stream(seed, cluster.accuracy.images if images is None else images)
    gateway = Gateway(cluster, make(router, cluster, seed, scenario.goal), scenario.gateway)
    meter = Meter(cluster.accuracy, from_s=load.warmup_s)
    simulated = SimulatedCluster(
        cluster=cluster,
        gateway=gateway,
        schedulers=scenario.schedulers,
        stream=stream,
        telemetry=scenario.telemetry,
        faults=scenario.faults,
        observers=(meter, *observers),
        costs=scenario.costs,
        crowding=Crowding(scenario.hosts, scenario.neighbours_slowdown),
        autoscale=scenario.autoscale,
    )
    if bound_accuracy is None:
        counted_per_s = stream.after(load.warmup_s) / (load.seconds - load.warmup_s)
        bound_accuracy = fluid_optimum(cluster, counted_per_s or 1.0).accuracy
    began_s = perf_counter()
    with collector_paused():
        ended_s = simulated.run(load.seconds, drain=drain)
    for event in simulated.unheard():
        meter.ran(event)
    summary = meter.summary(
        router=router,
        seconds=ended_s - load.warmup_s,
        in_system=gateway.in_system,
        bound_accuracy=bound_accuracy,
        wall_s=perf_counter() - began_s,
        idle_w=_idle_w(scenario, simulated, ended_s),
        energy_source="; ".join(sorted({profile.source.split(":")[0] for profile in cluster.profiles})),
    )
    answered_s, latency_s, tuples = meter.answers()
    return Trace(summary=summary, answered_s=answered_s, latency_s=latency_s, tuples=tuples)


def _idle_w(scenario: Scenario, simulated: SimulatedCluster, ended_s: float) -> float:
    """Mean power of idle devices; under an autoscaler a server that does not run draws nothing."""
    idle_w = [profile.idle_w for profile in scenario.cluster.profiles]
    if scenario.autoscale is None:
        return sum(idle_w)
    return sum(watts * simulated.ran_s(server) / ended_s for server, watts in enumerate(idle_w))
