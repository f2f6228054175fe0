"""The live cluster: the same gateway as in simulation, with servers in processes of their own.

Calls enter in bundles; what arrives in one round of the event loop is told to the gateway together. Each
event is handled, shown to observers and carried out, in that order. A bundle is open until all its examples
are answered or dropped; whoever handed it in gets outputs and receipts. Models may come and go meanwhile.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic
from typing import assert_never

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.core.log import Observer
from slimsched.models.spec import TensorSpec
from slimsched.serving.domain.cluster import GATEWAY, GATEWAY_NAME
from slimsched.serving.domain.model import ModelsChanged, ServedModel
from slimsched.serving.domain.request import ANY_TERMS, NEVER_S, DropReason, Request, RequestsCancelled, Terms
from slimsched.serving.gateway import messages
from slimsched.serving.gateway.gateway import Gateway, Health, health_of
from slimsched.serving.gateway.goal import Goal, least_energy_j
from slimsched.serving.live import wire
from slimsched.serving.live.calls import (
    Bundle,
    BundleWaiter,
    DroppedError,
    OpenCall,
    Rows,
    arrays_of,
    laid,
    rows_of,
)
from slimsched.serving.live.engine import Engine
from slimsched.serving.live.memory import InputArena
from slimsched.serving.routers.autoscaler import (
    LOOK_S,
    AutoscaleOptions,
    ReportedLoad,
    Scaling,
    Servers,
    load_of,
)

# -- The bundles under way: finds the bundle of each example, and keeps its receipts and outputs.

Stretch = tuple[int, Bundle, int, int]
"""Neighbours of one bundle among the examples of some requests: start there, bundle, start and end in it."""


class OpenBundles:
    """Bundles with examples that have neither been answered nor dropped, in the order of their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are those of the servers."""
        self._names = names
        self._firsts: list[int] = []  # number of each bundle's first example
        self._bundles: list[Bundle] = []
        self._examples = 0

    def __len__(self) -> int:
        return self._examples

    def add(self, bundle: Bundle) -> None:
        """Keep a bundle, whose numbers follow those of all before it, until its last example has left."""
        self._firsts.append(bundle.first)
        self._bundles.append(bundle)
        self._examples += bundle.count

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """Each bundle once."""
        return tuple(self._bundles)

    def still_open(self, numbers: range) -> tuple[int, ...]:
        """Return which of these examples are still under way."""
        found: list[Stretch] = []
        self._look(numbers.start, numbers.stop, 0, found)
        return tuple([bundle.first + at for _, bundle, start, end in found for at in range(start, end)])

    def stretches(self, requests: Sequence[Request]) -> list[Stretch]:
        """List runs of neighbours of one bundle that are still under way."""
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
        bundles, place = self._bundles, bisect_right(self._firsts, first) - 1
        while place < len(bundles):
            if place >= 0:
                bundle = bundles[place]
                base = bundle.first
                if base >= end:
                    return
                start, stop = (first if first > base else base) - base, min(end, base + bundle.count) - base
                if start < stop:
                    ways = bundle.here(start, stop)
                    found += [(row + base + begin - first, bundle, begin, after) for begin, after in ways]
            place += 1

    def sent(self, command: messages.SendBlock) -> list[Rows]:
        """Note why a block goes to its server; return its inputs, unless they lie at a server."""
        block, why, rows = command.block, command.why, list[Rows]()
        segment, legs = block.key.segment, len(block.key.legs)
        runner_up = "" if why is None or why.server < 0 else self._names[why.server]
        for _, bundle, start, end in self.stretches(block.requests):
            for receipt in bundle.receipts(start, end):
                receipt.reasons = (*receipt.reasons[:segment], *[command.reason] * legs)
                receipt.why, receipt.runner_up = why, runner_up
            if command.source == GATEWAY:
                rows += bundle.rows(start, end)
        return rows

    def ran(
        self, finished: messages.SegmentFinished, raw: Sequence[bytes], specs: Sequence[TensorSpec]
    ) -> None:
        """Record a batch on the receipts of its requests, and keep its outputs if there are any."""
        segment, examples = finished.blocks[0].key.segment, finished.examples
        outputs = arrays_of(raw, specs, examples) if raw else ()
        servers = (self._names[finished.server],) * (1 + len(finished.ahead))
        energy_j, before = finished.energy_j / examples, 0
        for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
            for row, bundle, start, end in self.stretches(block.requests):
                for receipt in bundle.receipts(start, end):
                    receipt.servers = (*receipt.servers[:segment], *servers)
                    receipt.queue_s += queue_s
                    receipt.compute_s += finished.busy_s
                    receipt.energy_j += energy_j
                if outputs:
                    rows = slice(before + row, before + row + end - start)
                    bundle.put_outputs(start, tuple([one[rows] for one in outputs]))
            before += block.examples

    def answered(self, requests: Sequence[Request], now_s: float, energy_source: str) -> None:
        """Tell whoever waits that these requests are answered."""
        for request in requests:
            bundle = self._close(request)
            bundle.went(request, now_s, energy_source)
            bundle.answered(request.id - bundle.first, request.count)

    def dropped(self, requests: Sequence[Request], reason: DropReason, detail: str) -> None:
        """Tell whoever waits why these requests have no answer."""
        for request in requests:
            bundle = self._close(request)
            bundle.dropped(request.id - bundle.first, request.count, DroppedError(reason, detail))

    def _close(self, request: Request) -> Bundle:
        """Note that a request has left; return the bundle that it belongs to."""
        place = bisect_right(self._firsts, request.id) - 1
        bundle = self._bundles[place]
        assert bundle.first <= request.id < bundle.first + bundle.count, "it has left before"
        self._examples -= request.count
        if bundle.left(request.id - bundle.first, request.count):
            del self._firsts[place], self._bundles[place]
        return bundle


# -- Which models the servers of a live cluster must have, and which they have.

log = logging.getLogger("slim.models")

HOST_LIMIT_S = 300.0
"""How long servers may take to load a model."""


class ModelHosting:
    """Has models loaded by every server before they are used, also by servers that come up later."""

    def __init__(self, send: Callable[[int, wire.ToServer], None], servers: int) -> None:
        self._send, self._servers = send, servers
        self._messages: dict[int, Sequence[wire.HostModel]] = {}  # by model, then by server
        self._gone: set[int] = set()
        self._waiting: dict[int, set[int]] = {}  # servers that a model under way waits for
        self._loaded: dict[int, asyncio.Future[None]] = {}
        self._late: dict[int, set[int]] = {}  # by server: what it must load before it takes work

    async def host(self, number: int, messages: Sequence[wire.HostModel], up: Collection[int]) -> None:
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
            self._send(server, wire.UnhostModel(number=number))

    def reported(self, server: int, message: wire.ModelHosted) -> bool:
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
            self._send(server, wire.UnhostModel(number=number))
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
    """Carries out the commands of a gateway in real time.

    What happens becomes an event of the gateway, in `_tell`, and from nowhere else: requests that have
    arrived (`submit_bundle`), messages of servers (`received`), servers that come and go (the engine calls
    `server_up` and its like), goals and models that change, and timers that the gateway has set. Its commands
    go the other way: blocks to servers, answers and refusals to the calls that wait for them (`OpenCalls`).
    """

    def __init__(
        self,
        gateway: Gateway,
        engine: Engine,
        observers: Sequence[Observer] = (),
        sample: Callable[[int, float, Callable[[], Sequence[memoryview]]], None] | None = None,
    ) -> None:
        """`sample` is shown the model, the time and an example of what comes in."""
        self._gateway, self._engine, self._observers, self._sample = gateway, engine, observers, sample
        self._names = gateway.cluster.names
        self._open = OpenBundles(self._names)
        self._arrived: list[Request] = []
        self._refused: Counter[int] = Counter()
        """How many examples of each model were refused before they became requests."""
        self._round = wire.NextRound(self._tell_arrivals)
        self._next_id, self._zero_s = engine.first_id, engine.clock_zero_s
        self._hosting = ModelHosting(engine.send, len(self._names))
        self._power_source = [""] * len(self._names)
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
        return health_of(self._gateway, self._engine.waiting)

    def is_alive(self, server: int) -> bool:
        """Whether a server takes work now."""
        return bool(self._gateway.seen.alive[server])

    async def start(self) -> None:
        """Start the servers; requests may arrive once this returns."""
        self._loop, self._lag, self._awake = asyncio.get_running_loop(), wire.LoopLag(), wire.Wakefulness()
        for server in range(len(self._names)):
            self._tell(messages.ServerDown(server=server))
        await self._engine.start(self)

    def submit(
        self,
        inputs: Sequence[bytes | memoryview],
        terms: Terms = ANY_TERMS,
        *,
        count: int = 1,
        model: int = 0,
        example: int = -1,
        arrived_s: float | None = None,
    ) -> OpenCall:
        """Accept a call of this process, with the bytes of its inputs, as a bundle of its own."""
        rows, room = laid(rows_of(inputs, count), self.arena)
        release = None if room is None or self.arena is None else partial(self.arena.give_back, room)
        call = OpenCall(count, self._loop.create_future())
        arrived_s = self.now_s if arrived_s is None else arrived_s
        call.bundle = self.submit_bundle(
            [rows], terms, call, model=model, arrived_s=arrived_s, example=example, release=release
        )
        return call

    def submit_bundle(
        self,
        rows: Sequence[Rows],
        terms: Terms,
        waiter: BundleWaiter,
        *,
        model: int,
        arrived_s: float,
        number: int = 0,
        example: int = -1,
        release: Callable[[], None] | None = None,
    ) -> Bundle:
        """Accept examples on the same terms; the waiter is told of each part as soon as it is done."""
        bundle = Bundle(
            self._next_id,
            rows,
            waiter,
            arrival_s=arrived_s,
            deadline_s=min(NEVER_S, arrived_s + terms.deadline_s),
            model=model,
            number=number,
            release=release,
        )
        self._next_id += bundle.count
        self._open.add(bundle)
        if self._sample is not None:
            self._sample(model, arrived_s, partial(self._raws, rows[0].part(0, 1)))
        if self._gateway.options.early_drop and bundle.deadline_s < NEVER_S:
            late, left_s = DroppedError(DropReason.DEADLINE_PASSED), bundle.deadline_s - self.now_s
            bundle.timer = self._loop.call_later(max(0.0, left_s), self._refuse, bundle, late)
        request = terms.request(bundle.first, arrived_s, model, example=example, count=bundle.count)
        self._round.expect()
        self._arrived.append(request)
        return bundle

    def _tell_arrivals(self) -> None:
        """Tell the gateway of what came in during one round of the event loop together."""
        requests, self._arrived = tuple(self._arrived), []
        if self._refused:
            counts = tuple(self._refused[model] for model in range(max(self._refused) + 1))
            self._refused.clear()
            self._tell(messages.RequestsRefused(counts=counts))
        if requests:
            self._tell(messages.RequestsArrived(requests=requests))

    def least_energy_j(self, model: int) -> float:
        """Return the least energy that an example of a model can take here."""
        return least_energy_j(self._gateway.cluster, model)

    def refusal(self, terms: Terms, arrived_s: float, *, count: int, model: int) -> DropReason | None:
        """Say why a call with these terms would be refused; None if it can be answered in time.

        A refusal must cost little, or refusing takes the time that answers need: so the gateway hears of no
        request here, but by `count_refused` of the number refused.
        """
        admission = self._gateway.admission
        if admission is None:
            return None
        if terms.deadline_s >= NEVER_S:
            return admission.refusal_in_line(terms.priority)
        return admission.refusal(terms.request(0, arrived_s, model), count, self.now_s)

    def count_refused(self, model: int, examples: int) -> None:
        """Tell the gateway that examples were refused before it was asked: they are part of the demand."""
        self._round.expect()
        self._refused[model] += examples

    @property
    def least_backlog_s(self) -> float:
        """How long each server that is up has work for, at least."""
        return self._gateway.seen.least_backlog_s()

    def wait_s(self, priority: int) -> float:
        """Return the time that the work ahead of a call without a deadline takes, as predicted."""
        admission = self._gateway.admission
        return 0.0 if admission is None else admission.wait_s(priority)

    def _refuse(self, bundle: Bundle, why: DroppedError) -> None:
        """End a bundle without an answer, at its deadline or at the end of all, whatever servers do.

        Gateway and servers know deadlines, and drop late requests by themselves when they come to them.
        """
        if bundle.fail(why):
            bundle.is_cancelled = True

    def cancel(self, bundle: Bundle) -> None:
        """Drop the examples that are not answered yet, because nobody waits for them."""
        bundle.give_up()
        if not bundle.is_cancelled:
            bundle.is_cancelled = True
            self._cancel(bundle.requests)

    def cancel_part(self, bundle: Bundle, start: int, end: int) -> None:
        """Drop some examples that nobody waits for."""
        self._cancel(bundle.requests[start:end])

    def _cancel(self, numbers: range) -> None:
        if open_ := self._open.still_open(numbers):
            self._tell(RequestsCancelled(requests=open_))

    async def drain(self) -> None:
        """Wait until all accepted requests are answered or dropped."""
        while waiting := [one for one in self._open.bundles if not one.is_done]:
            await waiting[0].ended()

    async def stop(self, *, limit_s: float | None = None) -> None:
        """Drain, then stop the servers; after `limit_s`, refuse what has no answer yet."""
        try:
            async with asyncio.timeout(limit_s):
                await self.drain()
        except TimeoutError:
            why = f"no answer within {limit_s:g} s after the server was told to stop"
            for bundle in self._open.bundles:
                self._refuse(bundle, DroppedError(DropReason.SHUTTING_DOWN, why))
        await self._engine.stop()
        self._lag.stop()

    async def scale_forever(self, options: AutoscaleOptions, fleet: Servers) -> None:
        """Let an autoscaler check the load periodically, and start and stop servers as it decides."""
        scaling = Scaling(options, fleet, self.load, self._observers)
        while True:
            await asyncio.sleep(LOOK_S)
            scaling.look(self.now_s)

    def set_goal(self, goal: Goal) -> None:
        """Give the router another goal."""
        self._tell(messages.GoalChanged(goal=goal))

    async def add_model(self, number: int, messages: Sequence[wire.HostModel]) -> None:
        """Load a model on every server, and return once it is warm everywhere.

        Raises what a server says if it cannot load the model.
        """
        up = [server for server in range(len(self._names)) if self.is_alive(server)]
        await self._hosting.host(number, messages, up)

    def change_models(self, change: ModelsChanged) -> None:
        """Take requests to the models that were added, and no new ones to those that are retired."""
        self._tell(change)

    async def drain_model(self, number: int) -> None:
        """Wait until all requests to a retired model are answered or dropped, then let servers forget it."""
        while any(bundle.model == number for bundle in self._open.bundles):
            await asyncio.sleep(DRAIN_LOOK_S)
        self._hosting.drop(number)

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """The engine says a server takes work; if it lacks a model it must load that first."""
        if models is None or self._hosting.came_up(server, models):
            self._tell(messages.ServerUp(server=server))

    def server_down(self, server: int) -> None:
        """The engine says a server is gone."""
        self._hosting.went_down(server)
        self._tell(messages.ServerDown(server=server))

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """The engine says a server cannot be started."""
        self._tell(messages.ServerGivenUp(server=server, reason=reason, left=left))

    def server_leaving(self, server: int) -> None:
        """Called by the engine when a server accepts no more work."""
        self._tell(messages.ServerLeaving(server=server))

    def is_needed(self, server: int) -> bool:
        """Whether requests under way need a server's activations."""
        return self._gateway.holds_for(server)

    def load(self) -> ReportedLoad:
        """Return what the gateway has to carry now."""
        return load_of(self._gateway)

    def received(self, server: int, message: wire.ToGateway) -> None:
        """Called by the engine for each message of a server."""
        match message:
            case wire.BatchDone(finished=finished, outputs=outputs):
                model = self._gateway.cluster.models[finished.blocks[0].key.model]
                self._open.ran(finished, outputs, model.spec.outputs)
                self._tell(finished)
                if not self._open:
                    self._awake.rest()
            case messages.TelemetryReceived(snapshot=snapshot):
                if snapshot.power_source != self._power_source[server]:
                    self._power_source[server] = snapshot.power_source
                    self.power_sources = "; ".join(sorted({one for one in self._power_source if one}))
                self.why_waiting[self._names[server]] = snapshot.waiting
                self._tell(message)
            case messages.BlockDropped() | messages.InputLost():
                self._tell(message)
            case wire.ModelHosted():
                if self._hosting.reported(server, message):
                    self._tell(messages.ServerUp(server=server))
            case wire.Ready() | wire.Pong():
                pass  # for the engine
            case _:
                assert_never(message)

    def _tell(self, event: messages.Event) -> None:
        """Pass one event to the gateway, show observers its decisions, then carry them out."""
        now_s = self.now_s
        commands = self._gateway.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, GATEWAY_NAME, event, commands)
        for command in commands:
            self._carry_out(command, now_s)

    def _carry_out(self, command: messages.Command, now_s: float) -> None:
        match command:
            case messages.SendBlock():
                self._send(command)
            case messages.Answer(requests=requests):
                self._open.answered(requests, now_s, self.power_sources)
            case messages.Drop(requests=requests, reason=reason, detail=detail):
                self._open.dropped(requests, reason, detail)
            case messages.RecallRequests(server=server) | messages.Forget(server=server):
                self._engine.send(server, command)
            case WakeAt(at_s=at_s):
                self._loop.call_later(max(0.0, at_s - self.now_s), self._tell, Wake())
            case _:
                assert_never(command)

    def _send(self, command: messages.SendBlock) -> None:
        self._awake.expect()
        server, block, source = command.server, command.block, command.source
        rows = self._open.sent(command)
        peer = "" if source in (server, GATEWAY) else self._engine.peer_address(source)
        if rows and all(piece.offsets for piece in rows):
            pieces = [wire.InputPiece(piece.count, piece.offsets) for piece in rows]
            self._engine.send(server, wire.TakeBlock(block=block, pieces=pieces))
            return
        joined = [b"".join(raws) for raws in zip(*map(self._raws, rows), strict=True)]
        self._engine.send(server, wire.TakeBlock(block=block, inputs=joined, peer=peer))

    def _raws(self, rows: Rows) -> Sequence[memoryview]:
        """Return the bytes of each input, wherever they lie."""
        if not rows.offsets:
            return rows.raws
        assert self.arena is not None
        sized = zip(rows.offsets, rows.sizes, strict=True)
        return [self.arena.view(offset, rows.count * size) for offset, size in sized]
