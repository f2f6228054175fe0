"""One live run: the same scenario, router and arrivals as in simulation, on real server processes."""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from time import monotonic

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.clock import collector_paused
from slimsched.core.config import ConfigError
from slimsched.core.log import Observer
from slimsched.serving.domain.profile import record_of
from slimsched.serving.domain.request import Request, Terms
from slimsched.serving.execution.live.cluster import LiveCluster
from slimsched.serving.execution.live.engine import Engine
from slimsched.serving.execution.live.example_set import ExampleSet
from slimsched.serving.execution.live.local_engine import LocalEngine
from slimsched.serving.execution.live.parcel import Answered, Call, DroppedError
from slimsched.serving.execution.live.run_log import RunLog
from slimsched.serving.execution.live.server_spec import ServerSpec
from slimsched.serving.gateway.bounds import fluid_optimum, judges, sure_accuracy_at
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.routers.registry import RouterMaker, make_router
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.meter import Meter, Trace


class LiveResult(Struct, frozen=True, kw_only=True):
    """A live run's trace, how late requests were sent, and accuracy on examples whose labels are known.

    `message_s` is the mean time of a message between gateway and servers; a request takes eight.
    """

    trace: Trace
    dispatch_error_p99_s: float
    message_s: float
    accuracy: float | None


def specs_of(scenario: Scenario, clock_zero_s: float, log: RunLog | None = None) -> list[ServerSpec]:
    """Return the specs of a scenario's servers; with a log, each server writes its own beside it."""
    for name, host in zip(scenario.cluster.names, scenario.hosts, strict=True):
        if host is None:
            raise ConfigError(
                f"server '{name}' of scenario '{scenario.name}' has no host, so it can only be simulated; "
                'add host = { kind = "cpu" } to its [[server]] section'
            )
    sources = [model.entry.source for model in scenario.cluster.models]
    specs = [
        ServerSpec(
            index=index,
            name=name,
            host=host,
            scheduler=scheduler,
            models=sources,
            profiles=[record_of(profile, model) for model in scenario.cluster.models],
            gateway_socket="",
            own_socket="",
            shared_prefix="",
            clock_zero_s=clock_zero_s,
            telemetry_period_s=scenario.telemetry.period_s,
            sensors=scenario.telemetry.sensors,
        )
        for index, (name, host, scheduler, profile) in enumerate(
            zip(
                scenario.cluster.names,
                scenario.hosts,
                scenario.schedulers,
                scenario.cluster.profiles,
                strict=True,
            )
        )
        if host is not None
    ]
    return specs if log is None else [log.for_server(spec) for spec in specs]


async def run_live(
    scenario: Scenario,
    router: str,
    examples: Sequence[ExampleSet],
    *,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    make: RouterMaker = make_router,
    engine: Engine | None = None,
    clock_zero_s: float | None = None,
    log: RunLog | None = None,
) -> LiveResult:
    """Start the servers, send the scenario's load in open loop, wait for every answer, stop the servers.

    `examples` holds one set per model. With `engine`, its servers are used; their clocks start at
    `clock_zero_s`, and they write no logs.
    """
    cluster, load = scenario.cluster, scenario.load
    meter = Meter(cluster.models)
    gateway = Gateway(cluster, make(router, cluster, seed, scenario.goal), scenario.gateway)
    zero_s = monotonic() if clock_zero_s is None else clock_zero_s
    engine = engine or LocalEngine(specs_of(scenario, zero_s, log))
    logs = () if log is None else (log,)
    live = LiveCluster(gateway, engine, (meter, *logs, *observers), clock_zero_s=zero_s)
    waiters: list[asyncio.Future[Answered]] = []
    await live.start()
    try:
        stream = load.stream(seed, cluster.models, shares=scenario.shares, sizes=[len(s) for s in examples])
        requests = stream.take_until(load.seconds)
        await asyncio.sleep(0)  # what the run before left is let go of here, not while this one counts
        began_s = live.now_s
        arrivals_s = [request.arrival_s for request in requests]
        late_s: list[float] = []
        with collector_paused():
            while (sent := len(waiters)) < len(requests):
                await asyncio.sleep(max(0.0, began_s + arrivals_s[sent] - live.now_s))
                passed_s = live.now_s - began_s
                due = bisect_right(arrivals_s, passed_s, lo=sent)
                late_s += [passed_s - arrival_s for arrival_s in arrivals_s[sent:due]]
                calls = [
                    Call(examples[one.model].row(one.example), one.example, one.model)
                    for one in requests[sent:due]
                ]
                parcels = live.submit_each(calls, Terms(deadline_s=load.deadline_s))
                waiters += [parcel.future for parcel in parcels]
            await live.drain()
            seconds = live.now_s - began_s
        answers = await asyncio.gather(*waiters, return_exceptions=True)
    finally:
        await live.stop()
        await asyncio.gather(*waiters, return_exceptions=True)  # seen, also when interrupted
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, DroppedError):
            raise answer
    rate = max(1.0, len(requests) / load.seconds)
    summary = meter.summary(
        router=router,
        seconds=seconds,
        in_system=gateway.in_system,
        bound_accuracy=fluid_optimum(cluster, rate, shares=scenario.shares or None).accuracy,
        sure_bound_accuracy=sure_accuracy_at(cluster, rate, scenario.shares)
        if judges(gateway.router, cluster)
        else 0.0,
        wall_s=seconds,
        idle_w=sum(profile.idle_w for profile in cluster.profiles),
        energy_source=live.power_sources,
    )
    kept = meter.answers()
    return LiveResult(
        trace=Trace(summary=summary, answers=replace(kept, answered_s=kept.answered_s - began_s)),
        dispatch_error_p99_s=float(np.percentile(late_s, 99)) if late_s else 0.0,
        message_s=_message_s(answers),
        accuracy=_accuracy(answers, requests, examples),
    )


def _message_s(answers: Sequence[object]) -> float:
    """Mean time per message: all time that is neither queue nor compute, over two messages per segment."""
    receipts = [answer.receipts[0] for answer in answers if isinstance(answer, Answered)]
    other_s = [(one.latency_s - one.queue_s - one.compute_s) / (2 * len(one.path)) for one in receipts]
    return float(np.mean(other_s)) if other_s else 0.0


def _accuracy(
    answers: Sequence[object], requests: Sequence[Request], examples: Sequence[ExampleSet]
) -> float | None:
    """Share of answered examples with known labels whose largest output is their label."""
    right = [
        int(answer.outputs[0].argmax()) == labels[request.example]
        for answer, request in zip(answers, requests, strict=True)
        if isinstance(answer, Answered) and (labels := examples[request.model].labels) is not None
    ]
    return float(np.mean(right)) if right else None
