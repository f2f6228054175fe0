"""The live cluster: the same gateway as in simulation, with an engine's servers that run its commands."""

import asyncio
from collections.abc import Collection, Sequence
from time import monotonic
from typing import assert_never

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.serving.domain.cluster import GATEWAY, GATEWAY_NAME
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.request import ANY_TERMS, NEVER_S, DropReason, RequestsCancelled, Terms
from slimsched.serving.execution.live.arrivals import Arrivals
from slimsched.serving.execution.live.bundle import Bundle, BundleWaiter
from slimsched.serving.execution.live.engine import Engine
from slimsched.serving.execution.live.input_arena import InputArena
from slimsched.serving.execution.live.loop_lag import LoopLag
from slimsched.serving.execution.live.messages import (
    BatchDone,
    HostModel,
    InputPiece,
    ModelHosted,
    Pong,
    Ready,
    TakeBlock,
    ToGateway,
)
from slimsched.serving.execution.live.model_hosting import ModelHosting
from slimsched.serving.execution.live.open_calls import OpenCalls
from slimsched.serving.execution.live.parcel import Call, DroppedError, OpenExamples, Parcel, Rows, rows_of
from slimsched.serving.execution.live.wakefulness import Wakefulness
from slimsched.serving.gateway.gateway import Gateway, Health, health_of
from slimsched.serving.gateway.goal import Goal, least_energy_j
from slimsched.serving.gateway.messages import (
    Answer,
    BlockDropped,
    Command,
    Drop,
    Event,
    Forget,
    GoalChanged,
    InputLost,
    RecallRequests,
    SendBlock,
    ServerDown,
    ServerGivenUp,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.routers.autoscaler import LOOK_S, AutoscaleOptions, Fleet, Scaling, load_of

DRAIN_LOOK_S = 0.02
"""How often to look whether the last requests are answered, of a model or of all."""


class LiveCluster:
    """Carries out the commands of a gateway in real time."""

    def __init__(
        self,
        gateway: Gateway,
        engine: Engine,
        observers: Sequence[Observer] = (),
        *,
        clock_zero_s: float | None = None,
        first_id: int = 0,
    ) -> None:
        self._gateway, self._engine, self._observers = gateway, engine, observers
        self._names = gateway.cluster.names
        self._open = OpenCalls(self._names)
        self._arrivals = Arrivals(gateway, self._tell)
        self._next_id = first_id
        self._zero_s = monotonic() if clock_zero_s is None else clock_zero_s
        self._hosting = ModelHosting(engine.send, len(self._names))
        self._power_source = [""] * len(self._names)
        self._waiting: Collection[int] = ()
        self.power_sources = ""
        """Where the servers' power figures come from."""
        self.why_waiting: dict[str, dict[str, str]] = {}
        """Each server's last reasons why batches could not form."""

    @property
    def now_s(self) -> float:
        """Seconds since this cluster was made, on the host's monotonic clock."""
        return monotonic() - self._zero_s

    @property
    def lag_s(self) -> float:
        """How late the event loop is."""
        return self._lag.seconds

    @property
    def arrived_s(self) -> float:
        """When a call arrived that is read now: it has waited for as long as the event loop is late."""
        return self.now_s - self.lag_s

    def since_zero_s(self, at_s: float) -> float:
        """Turn a time of the host's monotonic clock into one of this cluster."""
        return at_s - self._zero_s

    @property
    def arena(self) -> InputArena | None:
        """Memory for large inputs that the servers can read."""
        return self._engine.arena

    @property
    def in_system(self) -> int:
        """Number of examples accepted and not yet answered or dropped."""
        return len(self._open)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The models that take new requests."""
        return self._gateway.cluster.active

    @property
    def any_alive(self) -> bool:
        """Whether any server takes work now."""
        return bool(self._gateway.seen.alive_ids)

    @property
    def health(self) -> Health:
        """The state of each server, and why none is up if none is."""
        return health_of(self._gateway, self._waiting)

    def is_alive(self, server: int) -> bool:
        """Whether a server takes work now."""
        return bool(self._gateway.seen.alive[server])

    def waits_for_core(self, server: int) -> bool:
        """Whether a server is silent because it gets no core."""
        return server in self._waiting

    def power_source(self, server: int) -> str:
        """Where one server's power figure comes from; empty before its first sample."""
        return self._power_source[server]

    async def start(self) -> None:
        """Start the servers; requests may arrive once this returns."""
        self._loop, self._lag, self._awake = asyncio.get_running_loop(), LoopLag(), Wakefulness()
        for server in range(len(self._names)):
            self._tell(ServerDown(server=server))
        await self._engine.start(self)

    def submit(
        self,
        inputs: Sequence[bytes | memoryview],
        terms: Terms = ANY_TERMS,
        *,
        count: int = 1,
        model: int = 0,
        arrived_s: float | None = None,
    ) -> Parcel:
        """Accept a call with the bytes of each input tensor, `count` rows each; await it for the answer."""
        arrived_s = self.now_s if arrived_s is None else arrived_s
        parcel = self._parcel(inputs, count, arrived_s, model, terms)
        self._arrivals.add(terms.request(parcel.first, arrived_s, model, count=count))
        return parcel

    def submit_bundle(
        self,
        rows: Sequence[Rows],
        terms: Terms,
        waiter: BundleWaiter,
        *,
        model: int,
        arrived_s: float,
    ) -> Bundle:
        """Accept calls on the same terms together; the waiter is told of each part as soon as it is done."""
        count = sum([piece.count for piece in rows])
        deadline_s = min(NEVER_S, arrived_s + terms.deadline_s)
        bundle = Bundle(self._next_id, rows, count, arrived_s, waiter, model, deadline_s)
        self._open_up(bundle)
        self._arrivals.add(terms.request(bundle.first, arrived_s, model, count=count))
        return bundle

    def submit_each(self, calls: Sequence[Call], terms: Terms = ANY_TERMS) -> list[Parcel]:
        """Accept several calls of one example each."""
        now_s, parcels = self.now_s, []
        for call in calls:
            parcel = self._parcel(call.inputs, 1, now_s, call.model, terms)
            self._arrivals.add(terms.request(parcel.first, now_s, call.model, example=call.example))
            parcels.append(parcel)
        return parcels

    def least_energy_j(self, model: int) -> float:
        """Return the least energy that an example of a model can take here."""
        return least_energy_j(self._gateway.cluster, model)

    def refusal(
        self, terms: Terms, arrived_s: float, *, count: int, model: int, is_last_try: bool = True
    ) -> DropReason | None:
        """Say why a call with these terms would be refused; None if it can be answered in time.

        It counts as refused unless another try follows.
        """
        return self._arrivals.refusal(terms, count, model, arrived_s, self.now_s, is_last_try)

    def count_refused(self, model: int, examples: int) -> None:
        """Tell the gateway that examples were refused before it was asked: they are part of the demand."""
        self._arrivals.count_refused(model, examples)

    @property
    def least_backlog_s(self) -> float:
        """How long each server that is up has work for, at least."""
        return self._gateway.seen.least_backlog_s()

    def wait_s(self, priority: int) -> float:
        """Return the time that the work ahead of a call without a deadline takes, as predicted."""
        return self._arrivals.wait_s(priority)

    def _parcel(
        self, inputs: Sequence[bytes | memoryview], count: int, now_s: float, model: int, terms: Terms
    ) -> Parcel:
        deadline_s, future = min(NEVER_S, now_s + terms.deadline_s), self._loop.create_future()
        parcel = Parcel(self._next_id, rows_of(inputs, count), now_s, future, model, deadline_s)
        if self._engine.arena is not None:
            parcel.lie_in(self._engine.arena)
        self._open_up(parcel)
        return parcel

    def _open_up(self, parcel: OpenExamples) -> None:
        """Give a call its numbers, and end it at its deadline."""
        self._next_id += parcel.count
        self._open.add(parcel)
        if self._gateway.options.early_drop and parcel.deadline_s < NEVER_S:
            late, left_s = DroppedError(DropReason.DEADLINE_PASSED), parcel.deadline_s - self.now_s
            parcel.timer = self._loop.call_later(max(0.0, left_s), self._refuse, parcel, late)

    def _refuse(self, parcel: OpenExamples, why: DroppedError) -> None:
        """End a call without an answer, at its deadline or at the end of all, whatever servers do.

        Gateway and servers know deadlines, and drop late requests by themselves when they come to them.
        """
        if parcel.fail(why):
            parcel.is_cancelled = True

    def cancel(self, parcel: OpenExamples) -> None:
        """Drop the examples that are not answered yet, because nobody waits for them."""
        parcel.give_up()
        if parcel.is_cancelled:
            return
        parcel.is_cancelled = True
        self._cancel(parcel.requests)

    def cancel_part(self, bundle: Bundle, start: int, end: int) -> None:
        """Drop some examples that nobody waits for."""
        self._cancel(bundle.requests[start:end])

    def _cancel(self, numbers: range) -> None:
        if open_ := self._open.still_open(numbers):
            self._tell(RequestsCancelled(requests=open_))

    async def drain(self) -> None:
        """Wait until all accepted requests are answered or dropped."""
        while waiting := [one for one in self._open.calls if not one.is_done]:
            if futures := [one.future for one in waiting if isinstance(one, Parcel)]:
                await asyncio.wait(futures)
            else:
                await asyncio.sleep(DRAIN_LOOK_S)

    async def stop(self, *, limit_s: float | None = None) -> None:
        """Drain, then stop the servers; after `limit_s`, refuse what has no answer yet."""
        try:
            async with asyncio.timeout(limit_s):
                await self.drain()
        except TimeoutError:
            why = f"no answer within {limit_s:g} s after the server was told to stop"
            for parcel in self._open.calls:
                self._refuse(parcel, DroppedError(DropReason.SHUTTING_DOWN, why))
        await self._engine.stop()
        self._lag.stop()

    async def scale_forever(self, options: AutoscaleOptions, fleet: Fleet) -> None:
        """Let an autoscaler check the load periodically, and start and stop servers as it decides."""
        scaling = Scaling(options, fleet, lambda: load_of(self._gateway), self._observers)
        while True:
            await asyncio.sleep(LOOK_S)
            scaling.look(self.now_s)

    def set_goal(self, goal: Goal) -> None:
        """Give the router another goal."""
        self._tell(GoalChanged(goal=goal))

    async def add_model(
        self, entry: ModelEntry, messages: Sequence[HostModel], *, replacing: Sequence[int] = ()
    ) -> None:
        """Load a model on every server; once it is warm everywhere it takes over from those it replaces.

        Raises what a server says if it cannot load the model; nothing has changed then.
        """
        up = [server for server in range(len(self._names)) if self.is_alive(server)]
        await self._hosting.host(entry.number, messages, up)
        self._tell(ModelsChanged(added=(entry,), retired=tuple(replacing)))

    def retire_models(self, numbers: Sequence[int]) -> None:
        """Take no new requests to these models."""
        self._tell(ModelsChanged(retired=tuple(numbers)))

    async def drain_model(self, number: int) -> None:
        """Wait until all requests to a retired model are answered or dropped, then let servers forget it."""
        while any(call.model == number for call in self._open.calls):
            await asyncio.sleep(DRAIN_LOOK_S)
        self._hosting.drop(number)

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """The engine says a server takes work; if it lacks a model it must load that first."""
        if models is None or self._hosting.came_up(server, models):
            self._tell(ServerUp(server=server))

    def server_down(self, server: int) -> None:
        """The engine says a server is gone."""
        self._hosting.went_down(server)
        self._tell(ServerDown(server=server))

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """The engine says a server cannot be started."""
        self._tell(ServerGivenUp(server=server, reason=reason, left=left))

    def servers_wait(self, servers: Collection[int]) -> None:
        """The engine says which servers get no core."""
        self._waiting = tuple(servers)

    def server_leaving(self, server: int) -> None:
        """Called by the engine when a server accepts no more work."""
        self._tell(ServerLeaving(server=server))

    def received(self, server: int, message: ToGateway) -> None:
        """Called by the engine for each message of a server."""
        match message:
            case BatchDone(finished=finished, outputs=outputs):
                model = self._gateway.cluster.models[finished.blocks[0].key.model]
                self._open.ran(finished, outputs, model.spec.outputs)
                self._tell(finished)
                if not self._open:
                    self._awake.rest()
            case TelemetryReceived(snapshot=snapshot):
                if snapshot.power_source != self._power_source[server]:
                    self._power_source[server] = snapshot.power_source
                    self.power_sources = "; ".join(sorted({one for one in self._power_source if one}))
                self.why_waiting[self._names[server]] = snapshot.waiting
                self._tell(message)
            case BlockDropped() | InputLost():
                self._tell(message)
            case ModelHosted():
                if self._hosting.reported(server, message):
                    self._tell(ServerUp(server=server))
            case Ready() | Pong():
                pass  # for the engine
            case _:
                assert_never(message)

    def _tell(self, event: Event) -> None:
        """Pass one event to the gateway, show observers its decisions, then carry them out."""
        now_s = self.now_s
        commands = self._gateway.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, GATEWAY_NAME, event, commands)
        for command in commands:
            self._carry_out(command, now_s)

    def _carry_out(self, command: Command, now_s: float) -> None:
        match command:
            case SendBlock():
                self._send(command)
            case Answer(requests=requests):
                self._open.answered(requests, now_s, self.power_sources)
            case Drop(requests=requests, reason=reason, detail=detail):
                self._open.dropped(requests, reason, detail)
            case RecallRequests(server=server) | Forget(server=server):
                self._engine.send(server, command)
            case WakeAt(at_s=at_s):
                self._loop.call_later(max(0.0, at_s - self.now_s), self._tell, Wake())
            case _:
                assert_never(command)

    def _send(self, command: SendBlock) -> None:
        self._awake.expect()
        server, block, source = command.server, command.block, command.source
        rows = self._open.sent(command)
        peer = "" if source in (server, GATEWAY) else self._engine.peer_address(source)
        if rows and all(piece.offsets for piece in rows):
            pieces = [InputPiece(piece.count, piece.offsets) for piece in rows]
            self._engine.send(server, TakeBlock(block=block, pieces=pieces))
            return
        joined = [b"".join(raws) for raws in zip(*map(self._raws, rows), strict=True)]
        self._engine.send(server, TakeBlock(block=block, inputs=joined, peer=peer))

    def _raws(self, rows: Rows) -> Sequence[memoryview]:
        """Return the bytes of each input, wherever they lie."""
        if not rows.offsets:
            return rows.raws
        assert self.arena is not None
        sized = zip(rows.offsets, rows.sizes, strict=True)
        return [self.arena.view(offset, rows.count * size) for offset, size in sized]
