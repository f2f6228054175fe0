"""The live cluster: the same gateway as in simulation, with servers in processes of their own.

Calls enter as examples; what arrives in one round of the event loop is told to the gateway together. Each
event is handled, shown to observers and carried out, in that order. A call is open until all its examples are
answered or refused; then its caller gets outputs and receipts. Models may come and go while it serves.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import assert_never

import numpy as np

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.core.log import Observer
from slimsched.models.spec import NUMPY, TensorSpec
from slimsched.serving.domain.cluster import GATEWAY, GATEWAY_NAME
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.request import ANY_TERMS, NEVER_S, DropReason, Request, RequestsCancelled, Terms
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
    RequestsArrived,
    RequestsRefused,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerGivenUp,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.live.calls import (
    Bundle,
    BundleWaiter,
    DroppedError,
    Example,
    OpenExamples,
    Parcel,
    Rows,
    rows_of,
)
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.processes import Engine
from slimsched.serving.live.wire import (
    BatchDone,
    HostModel,
    InputPiece,
    LoopLag,
    ModelHosted,
    NextRound,
    Pong,
    Ready,
    TakeBlock,
    ToGateway,
    ToServer,
    UnhostModel,
    Wakefulness,
)
from slimsched.serving.routers.autoscaler import LOOK_S, AutoscaleOptions, Scaling, Servers, load_of

# -- Arrivals: what came in during one round of the event loop, told to the gateway together.


class Arrivals:
    """Collects requests, and counts those that the gateway's admission refuses before they are made.

    A refusal at the door must cost little, or refusing takes the time that answers need. So the door asks
    here first, and the gateway gets only the number of those refused.
    """

    def __init__(self, gateway: Gateway, tell: Callable[[RequestsArrived | RequestsRefused], None]) -> None:
        self._gateway, self._tell = gateway, tell
        self._requests: list[Request] = []
        self._refused: Counter[int] = Counter()  # by model
        self._round = NextRound(self._pass_on)

    def add(self, request: Request) -> None:
        """Tell the gateway of a request in the event loop's next round, together with others of this one."""
        self._round.expect()
        self._requests.append(request)

    def refusal(
        self, terms: Terms, count: int, model: int, arrived_s: float, now_s: float, is_last_try: bool
    ) -> DropReason | None:
        """Say why a call with these terms cannot be accepted; None if it can.

        It counts as refused unless another try follows.
        """
        admission = self._gateway.admission
        if admission is None:
            return None
        if terms.deadline_s >= NEVER_S:
            reason = admission.refusal_in_line(terms.priority)
        else:
            reason = admission.refusal(terms.request(0, arrived_s, model), count, now_s)
        if reason is not None and is_last_try:
            self.count_refused(model, count)
        return reason

    def count_refused(self, model: int, count: int) -> None:
        """Count examples that were refused before they became requests."""
        self._round.expect()
        self._refused[model] += count

    def wait_s(self, priority: int) -> float:
        """Return the time that the work ahead of a call without a deadline takes, as predicted."""
        admission = self._gateway.admission
        return 0.0 if admission is None else admission.wait_s(priority)

    def _pass_on(self) -> None:
        requests, self._requests = tuple(self._requests), []
        if self._refused:
            counts = tuple(self._refused[model] for model in range(max(self._refused) + 1))
            self._refused.clear()
            self._tell(RequestsRefused(counts=counts))
        if requests:
            self._tell(RequestsArrived(requests=requests))


# -- The calls under way: finds the call of each example, and keeps its receipts and outputs.

Stretch = tuple[int, OpenExamples, int, int]
"""Neighbours of one call among the examples of some requests: start there, the call, start and end in it."""


class OpenCalls:
    """Calls with examples that have neither been answered nor dropped, in the order of their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are those of the servers."""
        self._names = names
        self._firsts: list[int] = []  # number of each call's first example
        self._calls: list[OpenExamples] = []
        self._examples = 0

    def __len__(self) -> int:
        return self._examples

    def add(self, call: OpenExamples) -> None:
        """Keep a call, whose numbers follow those of all before it, until its last example has left."""
        self._firsts.append(call.first)
        self._calls.append(call)
        self._examples += call.count

    @property
    def calls(self) -> tuple[OpenExamples, ...]:
        """Each call once."""
        return tuple(self._calls)

    def still_open(self, numbers: range) -> tuple[int, ...]:
        """Return which of these examples are still under way."""
        found: list[Stretch] = []
        self._look(numbers.start, numbers.stop, 0, found)
        return tuple([call.first + at for _, call, start, end in found for at in range(start, end)])

    def stretches(self, requests: Sequence[Request]) -> list[Stretch]:
        """List runs of neighbours of one call that are still under way."""
        found: list[Stretch] = []
        row, first, end = 0, requests[0].id, requests[0].id
        for request in requests:
            if request.id != end:
                self._look(first, end, row, found)
                row, first = row + end - first, request.id
            end = request.id + request.count
        self._look(first, end, row, found)
        return found

    def _look(self, first: int, end: int, row: int, found: list[Stretch]) -> None:
        """Add the stretches from `first` to `end`, whose first example has this row."""
        calls, place = self._calls, bisect_right(self._firsts, first) - 1
        while place < len(calls):
            if place >= 0:
                call = calls[place]
                base = call.first
                if base >= end:
                    return
                start, stop = (first if first > base else base) - base, min(end, base + call.count) - base
                if start < stop:
                    ways = call.here(start, stop)
                    found += [(row + base + begin - first, call, begin, after) for begin, after in ways]
            place += 1

    def sent(self, command: SendBlock) -> list[Rows]:
        """Note why a block goes to its server; return its inputs, unless they lie at a server."""
        block, why, rows = command.block, command.why, list[Rows]()
        segment, legs = block.key.segment, len(block.key.legs)
        runner_up = "" if why is None or why.server < 0 else self._names[why.server]
        for _, call, start, end in self.stretches(block.requests):
            for receipt in call.receipts(start, end):
                receipt.reasons = (*receipt.reasons[:segment], *[command.reason] * legs)
                receipt.why, receipt.runner_up = why, runner_up
            if command.source == GATEWAY:
                rows += call.rows(start, end)
        return rows

    def ran(self, finished: SegmentFinished, raw: Sequence[bytes], specs: Sequence[TensorSpec]) -> None:
        """Record a batch on the receipts of its requests, and keep its outputs if there are any."""
        segment, examples = finished.blocks[0].key.segment, finished.examples
        outputs = [
            np.frombuffer(one, NUMPY[spec.datatype]).reshape(examples, *spec.shape)
            for one, spec in zip(raw, specs, strict=bool(raw))
        ]
        servers = (self._names[finished.server],) * (1 + len(finished.ahead))
        energy_j, before = finished.energy_j / examples, 0
        for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
            for row, call, start, end in self.stretches(block.requests):
                for receipt in call.receipts(start, end):
                    receipt.servers = (*receipt.servers[:segment], *servers)
                    receipt.queue_s += queue_s
                    receipt.compute_s += finished.busy_s
                    receipt.energy_j += energy_j
                if outputs:
                    rows = slice(before + row, before + row + end - start)
                    call.put_outputs(start, tuple([one[rows] for one in outputs]))
            before += block.examples

    def answered(self, requests: Sequence[Request], now_s: float, energy_source: str) -> None:
        """Tell whoever waits that these requests are answered."""
        for request in requests:
            call = self._close(request)
            call.went(request, now_s, energy_source)
            call.answered(request.id - call.first, request.count)

    def dropped(self, requests: Sequence[Request], reason: DropReason, detail: str) -> None:
        """Tell whoever waits why these requests have no answer."""
        for request in requests:
            call = self._close(request)
            call.dropped(request.id - call.first, request.count, DroppedError(reason, detail))

    def _close(self, request: Request) -> OpenExamples:
        """Note that a request has left; return the call that it belongs to."""
        place = bisect_right(self._firsts, request.id) - 1
        call = self._calls[place]
        assert call.first <= request.id < call.first + call.count, "it has left before"
        self._examples -= request.count
        if call.left(request.id - call.first, request.count):
            del self._firsts[place], self._calls[place]
        return call


# -- Which models the servers of a live cluster must have, and which they have.

log = logging.getLogger("slim.models")

HOST_LIMIT_S = 300.0
"""How long servers may take to load a model."""


class ModelHosting:
    """Has models loaded by every server before they are used, also by servers that come up later."""

    def __init__(self, send: Callable[[int, ToServer], None], servers: int) -> None:
        self._send, self._servers = send, servers
        self._messages: dict[int, Sequence[HostModel]] = {}  # by model, then by server
        self._gone: set[int] = set()
        self._waiting: dict[int, set[int]] = {}  # servers that a model under way waits for
        self._loaded: dict[int, asyncio.Future[None]] = {}
        self._late: dict[int, set[int]] = {}  # by server: what it must load before it takes work

    async def host(self, number: int, messages: Sequence[HostModel], up: Collection[int]) -> None:
        """Let all servers that are up load a model, and return when they have; raise the first error."""
        loaded = self._loaded[number] = asyncio.get_running_loop().create_future()
        self._messages[number], self._waiting[number] = messages, set(up)
        for server in up:
            self._send(server, messages[server])
        self._look(number)
        try:
            await asyncio.wait_for(loaded, HOST_LIMIT_S)
        except BaseException as error:
            self.drop(number)
            if isinstance(error, TimeoutError):
                raise SlimError(f"servers took longer than {HOST_LIMIT_S:g} s to load it") from None
            raise
        finally:
            del self._loaded[number], self._waiting[number]

    def drop(self, number: int) -> None:
        """Let all servers give a model up; nobody asks for it any more."""
        self._messages.pop(number, None)
        self._gone.add(number)
        for server in range(self._servers):
            self._send(server, UnhostModel(number=number))

    def reported(self, server: int, message: ModelHosted) -> bool:
        """Note what a server says; True if it is a late one that now has all it needs."""
        number = message.number
        if (loaded := self._loaded.get(number)) is not None:
            if message.error and not loaded.done():
                loaded.set_exception(SlimError(message.error))
            self._waiting[number].discard(server)
            self._look(number)
        late = self._late.get(server)
        if late is None:
            return False
        if message.error:
            log.error("a server that came up late cannot load model %d: %s", number, message.error)
            return False
        late.discard(number)
        if not late:
            del self._late[server]
        return not late

    def came_up(self, server: int, has: Collection[int]) -> bool:
        """Whether a server that came up has all models; if not, it is sent the rest and `reported` tells."""
        for number in self._gone.intersection(has):
            self._send(server, UnhostModel(number=number))
        missing = self._messages.keys() - set(has)
        for number in missing:
            self._send(server, self._messages[number][server])
            if number in self._waiting:
                self._waiting[number].add(server)
        needed = missing - self._waiting.keys()
        if needed:
            self._late[server] = needed
        return not needed

    def went_down(self, server: int) -> None:
        """A model that a server did not survive is not to be served."""
        self._late.pop(server, None)
        for number, waiting in self._waiting.items():
            if server in waiting and not self._loaded[number].done():
                self._loaded[number].set_exception(SlimError("a server ended while it loaded it"))

    def _look(self, number: int) -> None:
        loaded = self._loaded[number]
        if not self._waiting[number] and not loaded.done():
            loaded.set_result(None)


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

    def submit_each(self, calls: Sequence[Example], terms: Terms = ANY_TERMS) -> list[Parcel]:
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

    async def scale_forever(self, options: AutoscaleOptions, fleet: Servers) -> None:
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
