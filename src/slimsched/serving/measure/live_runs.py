"""Live runs: a scenario, a router and arrivals as in simulation, on real server processes, several in turn.

One live run: the same scenario, router and arrivals as in simulation, on real server processes.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from time import monotonic

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.clock import collector_paused
from slimsched.core.config import ConfigError
from slimsched.core.log import Observer
from slimsched.serving.domain.profile import record_of
from slimsched.serving.domain.request import Request, Terms
from slimsched.serving.gateway.bounds import fluid_optimum, judges, sure_accuracy_at
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.live.calls import Answered, DroppedError, Example
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.processes import Engine, EngineListener, LocalEngine, RunLog
from slimsched.serving.live.sensors import PowerMeter
from slimsched.serving.live.wire import ServerSpec, ToGateway, ToServer
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.routers.registry import RouterMaker, make_router
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.meter import Meter, Summary, Trace

# -- Keeps servers up between live runs: each run has a new gateway, and all runs use the same servers.


class KeptEngine:
    """An engine whose servers survive `stop`: `open` starts them, `close` stops them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener: EngineListener | None = None
        self._up: set[int] = set()

    @property
    def arena(self) -> InputArena | None:
        """Memory that the gateway shares with all servers."""
        return self._engine.arena

    async def open(self) -> None:
        """Start the servers."""
        await self._engine.start(self)

    async def start(self, listener: EngineListener) -> None:
        """Begin a run: tell its listener which servers are up."""
        self._listener = listener
        for server in sorted(self._up):
            listener.server_up(server)

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting."""
        self._engine.send(server, message)

    def peer_address(self, server: int) -> str:
        """Return the address where other servers fetch this server's activations."""
        return self._engine.peer_address(server)

    def kill(self, server: int) -> None:
        """Kill a server at once, as a fault would."""
        self._engine.kill(server)

    def end(self) -> None:
        """Kill every server at once."""
        self._engine.end()

    async def stop(self, *, drain: bool = True) -> None:
        """End the run; the servers wait for the next one."""
        self._listener = None

    async def close(self) -> None:
        """Stop the servers."""
        await self._engine.stop()

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """A server takes work; it keeps the models it has."""
        self._up.add(server)
        if self._listener is not None:
            self._listener.server_up(server)

    def server_down(self, server: int) -> None:
        """A server is gone."""
        self._up.discard(server)
        if self._listener is not None:
            self._listener.server_down(server)

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """A server cannot be started."""
        if self._listener is not None:
            self._listener.server_given_up(server, reason, left)

    def servers_wait(self, servers: Collection[int]) -> None:
        """These servers get no core."""
        if self._listener is not None:
            self._listener.servers_wait(servers)

    def server_leaving(self, server: int) -> None:
        """A server accepts no more work."""
        self._up.discard(server)
        if self._listener is not None:
            self._listener.server_leaving(server)

    def received(self, server: int, message: ToGateway) -> None:
        """A server has sent a message; between runs it is ignored."""
        if self._listener is not None:
            self._listener.received(server, message)


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
                    Example(examples[one.model].row(one.example), one.example, one.model)
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


# -- Compares routers on the same real servers, one after another, with measured accuracy and energy.


class Turn(Struct, frozen=True):
    """One run to come: a router, and a scenario with its load."""

    router: str
    scenario: Scenario
    seed: int


class LiveRow(Struct, frozen=True, kw_only=True):
    """One router's run: its trace, and figures that only a live run has."""

    router: str
    trace: Trace
    accuracy_on_images: float | None
    answered_meanwhile: int  # while requests still arrived
    energy_j: float  # of the whole device, from its counter; 0 where there is none
    wall_s: float
    dispatch_error_p99_s: float

    @property
    def summary(self) -> Summary:
        """The run's figures, as a simulated run has them."""
        return self.trace.summary

    def energy_j_per_request(self, idle_w: float) -> float:
        """Energy above idle per answer, by the counter."""
        return max(0.0, self.energy_j - idle_w * self.wall_s) / max(1, self.summary.completed)

    def measured(self, idle_w: float) -> Trace:
        """Return the trace with accuracy and energy as measured, where they were."""
        summary = self.summary
        if self.accuracy_on_images is not None:
            summary = replace(summary, accuracy=self.accuracy_on_images)
        if self.energy_j > 0:
            energy_j = self.energy_j_per_request(idle_w)
            summary = replace(summary, energy_j_per_request=energy_j, energy_source="counter of the device")
        return replace(self.trace, summary=summary)


def in_turn(routers: Sequence[str], scenario: Scenario, *, seed: int, rounds: int) -> list[Turn]:
    """Every router in every round; every other round runs backwards, so that drift touches all alike."""
    turns = []
    for number in range(rounds):
        order = routers if number % 2 == 0 else routers[::-1]
        turns += [Turn(router, scenario, seed + number) for router in order]
    return turns


async def compare_live(
    scenario: Scenario,
    turns: Sequence[Turn],
    examples: Sequence[ExampleSet],
    *,
    meter: PowerMeter | None,
    make: RouterMaker,
    progress: Callable[[str], None],
) -> list[LiveRow]:
    """Start the servers once; take the turns on them, each with its own gateway."""
    zero_s = monotonic()
    engine = KeptEngine(LocalEngine(specs_of(scenario, zero_s)))
    rows = []
    await engine.open()
    try:
        for turn in turns:
            progress(turn.router)
            before = None if meter is None else meter.read(0.0)
            found = await run_live(
                turn.scenario,
                turn.router,
                examples,
                seed=turn.seed,
                make=make,
                engine=engine,
                clock_zero_s=zero_s,
            )
            after = None if meter is None else meter.read(0.0)
            spent_j = 0.0 if before is None or after is None else after.energy_j - before.energy_j
            passed_s = found.trace.summary.seconds
            if before is not None and after is not None:
                passed_s = after.at_s - before.at_s
            answered_s = found.trace.answers.answered_s
            rows.append(
                LiveRow(
                    router=turn.router,
                    trace=found.trace,
                    accuracy_on_images=found.accuracy,
                    answered_meanwhile=int((answered_s <= turn.scenario.load.seconds).sum()),
                    energy_j=spent_j,
                    wall_s=passed_s,
                    dispatch_error_p99_s=found.dispatch_error_p99_s,
                )
            )
    finally:
        await engine.close()
    return rows
