"""Live runs: a scenario, a router and arrivals as in simulation, on real server processes.

Several routers are compared on the same servers: they stay up, and each run has a gateway of its own.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.clock import collector_paused
from slimsched.core.log import Observer
from slimsched.serving.domain.request import Request, Terms
from slimsched.serving.gateway.bounds import fluid_optimum, judges
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.live.calls import Answered, DroppedError
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import Engine, EngineListener, LocalEngine, RunLog, specs_of
from slimsched.serving.live.sensors import PowerMeter
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.routers.registry import make_router, split_goal
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.live_view import Watch
from slimsched.serving.telemetry.meter import Meter, Summary, Trace

# -- Keeps servers up between live runs: each run has a new gateway, and all runs use the same servers.


class KeptEngine(LocalEngine):
    """An engine whose servers survive `stop`: `open` starts them, `close` stops them."""

    async def open(self) -> None:
        """Start the servers."""
        await super().start(cast(EngineListener, _Nobody()))

    async def start(self, listener: EngineListener) -> None:
        """Begin a run: tell its listener which servers are up."""
        self._listener = listener
        for spec in self._specs:
            if self.is_up(spec.index):
                listener.server_up(spec.index)

    async def stop(self, *, drain: bool = True) -> None:
        """End the run; the servers wait for the next one."""
        self._listener = cast(EngineListener, _Nobody())

    async def close(self) -> None:
        """Stop the servers."""
        await super().stop()


class _Nobody:
    """Listens to the servers between runs: whatever they say, the next run finds them as they are."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


class LiveResult(Struct, frozen=True, kw_only=True):
    """A live run's trace, how late requests were sent, and accuracy on examples whose labels are known.

    `message_s` is the mean time of a message between gateway and servers; a request takes eight.
    """

    trace: Trace
    dispatch_error_p99_s: float
    message_s: float
    accuracy: float | None


async def run_live(
    scenario: Scenario,
    router: str,
    examples: Sequence[ExampleSet],
    *,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    engine: Engine | None = None,
    log: RunLog | None = None,
) -> LiveResult:
    """Start the servers, send the scenario's load in open loop, wait for every answer, stop the servers.

    `examples` holds one set per model. With `engine`, its servers are used, which write no logs.
    """
    cluster, load = scenario.cluster, scenario.load
    meter = Meter(cluster.models)
    gateway = Gateway(cluster, make_router(router, cluster, seed, scenario.goal), scenario.gateway)
    engine = engine or LocalEngine(specs_of(scenario), log=log)
    observers = (meter, *(() if log is None else (log,)), *observers)
    live = LiveCluster(gateway, engine, observers)
    sent = _Sent()
    await live.start()
    try:
        stream = load.stream(seed, cluster.models, shares=scenario.shares, sizes=[len(s) for s in examples])
        requests = stream.take_until(load.seconds)
        await asyncio.sleep(0)  # lets go of what the run before left, before this one counts
        began_s = live.now_s
        meter.watch = Watch(split_goal(router)[1] or scenario.goal, cluster, began_s)
        with collector_paused():
            await _send(live, requests, examples, Terms(deadline_s=load.deadline_s), sent)
            await live.drain()
            seconds = live.now_s - began_s
        answers = await asyncio.gather(*sent.waiters, return_exceptions=True)
    finally:
        await live.stop()
        await asyncio.gather(*sent.waiters, return_exceptions=True)  # seen, also when interrupted
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, DroppedError):
            raise answer
    rate = max(1.0, len(requests) / load.seconds)
    sure = 0.0
    if judges(gateway.router, cluster):
        sure = fluid_optimum(cluster, rate, shares=scenario.shares, sure=True).accuracy
    summary = meter.summary(
        router=router,
        seconds=seconds,
        in_system=gateway.in_system,
        bound_accuracy=fluid_optimum(cluster, rate, shares=scenario.shares).accuracy,
        sure_bound_accuracy=sure,
        wall_s=seconds,
        idle_w=sum(profile.idle_w for profile in cluster.profiles),
        energy_source=live.power_sources,
    )
    kept = meter.answers()
    return LiveResult(
        trace=Trace(summary=summary, answers=replace(kept, answered_s=kept.answered_s - began_s)),
        dispatch_error_p99_s=float(np.percentile(sent.late_s, 99)) if sent.late_s else 0.0,
        message_s=_message_s(answers),
        accuracy=_accuracy(answers, requests, examples),
    )


class _Sent(Struct):
    """The requests that were sent: what waits for the answer of each, and how late it left."""

    waiters: list[asyncio.Future[Answered]] = []
    late_s: list[float] = []


async def _send(
    live: LiveCluster, requests: Sequence[Request], examples: Sequence[ExampleSet], terms: Terms, sent: _Sent
) -> None:
    """Send every request when it is due, whether or not earlier ones are answered."""
    began_s, arrivals_s = live.now_s, [request.arrival_s for request in requests]
    while (first := len(sent.waiters)) < len(requests):
        await asyncio.sleep(max(0.0, began_s + arrivals_s[first] - live.now_s))
        passed_s = live.now_s - began_s
        due = bisect_right(arrivals_s, passed_s, lo=first)
        sent.late_s += [passed_s - arrival_s for arrival_s in arrivals_s[first:due]]
        for one in requests[first:due]:
            inputs = examples[one.model].row(one.example)
            sent.waiters.append(live.submit(inputs, terms, model=one.model, example=one.example).future)


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
            summary = replace(summary, energy_j_per_request=energy_j, energy_source="measured: its counter")
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
    progress: Callable[[str], None],
) -> list[LiveRow]:
    """Start the servers once; take the turns on them, each with its own gateway."""
    engine = KeptEngine(specs_of(scenario))
    rows = []
    await engine.open()
    try:
        for turn in turns:
            progress(turn.router)
            before = None if meter is None else meter.read(0.0)
            found = await run_live(turn.scenario, turn.router, examples, seed=turn.seed, engine=engine)
            spent_j, passed_s = 0.0, found.trace.summary.seconds
            if meter is not None and before is not None:
                after = meter.read(0.0)
                spent_j, passed_s = after.energy_j - before.energy_j, after.at_s - before.at_s
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
