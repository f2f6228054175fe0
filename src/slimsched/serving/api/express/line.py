"""Drives a compiled line: takes requests whose heads are known in bundles, and answers them together.

The package's head says what the thread does itself. What it leaves to Python is served in the way of its
protocol: by `Express` in `http.py`, and by `GrpcExpress` in `grpc_server.py`.
"""

import asyncio
import logging
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from slimsched.core.config import SlimError
from slimsched.serving.api.calls import AnswerForm, Call, InferenceResult, KnownHead, Layout, result_of
from slimsched.serving.api.fronts.bundles import CallBatcher, FrontCalls, message_of
from slimsched.serving.api.limits import TooMany
from slimsched.serving.api.service import CUTS, CallHandler, ModelsChangedError
from slimsched.serving.domain.bundling import MOST_EXAMPLES, later_s
from slimsched.serving.live.calls import Answered, AnswerParts, Receipt, Rows, arrays_of, in_arena, rows_of
from slimsched.serving.live.memory import ALIGN_BYTES, InputArena
from slimsched.serving.live.wire import AWAKE_S, has_many_cores

if TYPE_CHECKING:
    from slimsched.serving.api.express._compiled_line import CompiledLine, Group

# -- A bundle of express requests: they have one head, and were read without Python.


class ExpressBundle:
    """Requests in the order in which they came; the one at place p has the examples from p × count on."""

    def __init__(
        self,
        number: int,
        group: int,
        known: KnownHead,
        tokens: list[int],
        arrived_s: list[float],
        inputs: Rows,
        line: "ExpressLine[Any]",
        room: memoryview | None = None,
    ) -> None:
        """`room` is what the inputs take of the arena, if they lie there."""
        self.number, self.group, self.known = number, group, known
        self.tokens, self.arrived_s, self.room = tokens, arrived_s, room
        self._inputs: Rows | None = inputs
        self._line = line
        self._is_open = [True] * len(tokens)
        self._open = len(tokens)
        self._parts: dict[int, AnswerParts] = {}  # of requests whose examples were not answered together

    def message(self, arena: InputArena | None) -> FrontCalls:
        """Write the bundle for the gateway, which keeps the inputs from then on."""
        known, inputs = self.known, self._inputs
        assert inputs is not None
        self._inputs = None
        counts = [known.count] * len(self.tokens)
        pieces = [in_arena(inputs, arena) or inputs]
        return message_of(self.number, known.model, counts, self.arrived_s[0], pieces, known.call.terms)

    def answered(self, start: int, raws: Sequence[memoryview], receipts: Sequence[Receipt]) -> None:
        """Answer the requests whose examples are all on one receipt; others wait for the rest of theirs."""
        size, at, parted = self.known.count, start, set[int]()
        count = sum([receipt.examples for receipt in receipts])
        outputs = arrays_of(raws, self.known.call.api.spec.outputs, count)
        rows = self.known.rows(outputs)
        for receipt in receipts:
            end = at + receipt.examples
            self._answer_whole(range(-(-at // size), end // size), receipt, rows, start)
            parted |= {edge // size for edge in (at, end) if edge % size}
            at = end
        for place in sorted(parted):
            if self._is_open[place]:
                self._answer_part(place, start, Answered(outputs=outputs, receipts=receipts))
        self._check_end()

    def refused(self, start: int, end: int, error: SlimError) -> None:
        """Tell requests why they have no answer, or read them again if their model was replaced."""
        size = self.known.count
        places = [place for place in range(start // size, -(-end // size)) if self._close(place)]
        if isinstance(error, ModelsChangedError):
            for place in places:
                self._line.read_again(self, place)
        elif places:
            self._line.refuse(self, places, error)
        self._check_end()

    def leave(self, place: int) -> bool:
        """The client has left; return whether it still waited."""
        left = self._close(place)
        self._check_end()
        return left

    def _answer_whole(self, places: range, receipt: Receipt, rows: list[bytes], start: int) -> None:
        """Answer requests whose examples all went the same way."""
        answered = [place for place in places if self._close(place)]
        if answered:
            size, arrived_s = self.known.count, self.arrived_s
            since_s = [arrived_s[place] - arrived_s[0] for place in answered]
            starts = [place * size - start for place in answered]
            self._line.write(self, answered, receipt, since_s, rows, starts)

    def _answer_part(self, place: int, start: int, answered: Answered) -> None:
        """Keep what has come of a request, and answer it after the last part."""
        parts = self._parts.get(place)
        if parts is None:
            size, since_s = self.known.count, self.arrived_s[place] - self.arrived_s[0]
            parts = self._parts[place] = AnswerParts(size, place * size, since_s)
        if (whole := parts.take(start, answered)) is not None:
            self._close(place)
            self._line.answer(self, place, whole)

    def _close(self, place: int) -> bool:
        """Note that a request is answered; return False if it was before."""
        was_open, self._is_open[place] = self._is_open[place], False
        self._open -= was_open
        return was_open

    def _check_end(self) -> None:
        if not self._open:
            self._open = -1  # once
            self._line.end(self)


# -- Which of the compiled lines are not used, and what would change that.
#
# Everything works without them, only slower. So an installation that lacks one must say so.

NEEDS = {"HTTP": "a C++ compiler", "gRPC": "a C++ compiler and nghttp2 (Debian: libnghttp2-dev)"}
"""What must be installed before the package, so that a line is compiled."""
MODULES = {"HTTP": "_express", "gRPC": "_express_grpc"}


def unused_lines(*, has_tls: bool, load: Callable[[str], object] = import_module) -> list[str]:
    """Say in a sentence each why a compiled line is not used; nothing if both are."""
    if os.environ.get("SLIM_PURE"):
        return ["SLIM_PURE is set: HTTP and gRPC are read without the compiled lines, which is slower"]
    if has_tls:
        return ["with TLS, HTTP and gRPC are read without the compiled lines, which is slower"]
    if not sys.platform.startswith("linux"):
        return ["HTTP and gRPC are read without the compiled lines, which is slower: they need Linux"]
    package, said = __name__.rpartition(".")[0], []
    for protocol, module in MODULES.items():
        try:
            load(f"{package}.{module}")
        except ImportError as error:  # it, or a library that it was linked with, is not here
            why = "" if isinstance(error, ModuleNotFoundError) else f"{error}; "
            said.append(
                f"the compiled line of {protocol} is missing, so {protocol} is slower: {why}"
                f"install {NEEDS[protocol]}, then reinstall slim-scheduler"
            )
    return said


# -- The sockets that a compiled line listens at.


def listen(host: str, port: int, *, shares_port: bool) -> list[socket.socket]:
    """Listen at each address that a host has; port 0 picks one that is free, the same for all."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shares_port:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind((address[0], sockets[0].getsockname()[1] if len(sockets) > 1 else port, *address[2:]))
            one.listen(1024)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


log = logging.getLogger("slim.line")

Notice = TypeVar("Notice", tuple[int, bytes, bytes, str], tuple[int, bytes, bytes, str, int])
"""What a thread leaves to Python, which `_compiled_line.pyi` explains."""

CLOSED_SHARE, LEAST_CLOSED_S, MOST_CLOSED_S = 0.01, 0.0005, 0.005
"""After a refusal, the same call is refused without asking for this share of its deadline, within limits."""

REPORT_S = 1.0
"""How often what was turned away is counted and logged."""

DRAIN_LOOK_S = 0.01
LIMITS = ("connections", "connections_per_address", "held_bytes", "resets_per_s", "idle_s")
"""The limits that the threads of both protocols keep."""
MOST_HEADS = 256
"""When this many heads are known, all are forgotten."""


class ExpressLine(ABC, Generic[Notice]):
    """Drives the thread of one protocol: takes its requests, and answers them."""

    protocol: ClassVar[str]
    form: ClassVar[AnswerForm]
    fine: ClassVar[str]
    left: ClassVar[str]
    too_many: ClassVar[str]
    """How metrics call an answer, a client that left before it, and a refusal for too much work."""

    def __init__(
        self,
        native: "CompiledLine[Notice]",
        handler: CallHandler,
        link: CallBatcher,
        sockets: Sequence[socket.socket],
    ) -> None:
        self._line: CompiledLine[Notice] = native
        self._handler, self._link, self._sockets = handler, link, sockets
        self._loop, self._tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        self._numbers = count()
        self._known: dict[int, KnownHead] = {}
        self._heads: set[tuple[bytes, bytes]] = set()
        self._seen_once: dict[tuple[bytes, bytes], None] = {}  # the oldest first
        self._open: dict[int, tuple[ExpressBundle, int]] = {}  # requests with the gateway, by token
        self._account, self._held_bytes = handler.ledger.open(f"express {self.protocol}"), 0
        link.lines.append(self)
        if has_many_cores():
            native.set("awake_s", AWAKE_S)
        self._cuts = dict.fromkeys(CUTS, 0)
        self._reporting = self._loop.call_later(REPORT_S, self._report)
        self.forget()
        self._loop.add_reader(native.fileno(), self._notified)

    # -- what each protocol does in its own way

    @abstractmethod
    def _take_notice(self, notice: Notice) -> None:
        """Deal with what the thread leaves to Python."""

    @abstractmethod
    async def _read(self, token: int, data: bytes) -> None:
        """Read and answer a request as if its head were not known."""

    @abstractmethod
    def _written(self, call: Call, answered: InferenceResult) -> bytes:
        """Write the answer to one request."""

    @abstractmethod
    def _refused(self, error: SlimError) -> tuple[bytes, str]:
        """Write a refusal; return how metrics call it, too."""

    # -- heads

    def forget(self) -> None:
        """Forget all heads: models or limits have changed."""
        self._known.clear()
        self._heads.clear()
        self._line.tell("forget")
        for name, value in self._settings().items():
            self._line.set(name, value)
        for address in self._handler.limits.proxy_addresses:
            self._line.tell("proxy", 0, address.encode())
        self._line.tell("limits")

    def _settings(self) -> dict[str, float]:
        """Return the limits that the thread keeps, by the names that it has for them."""
        return {name: getattr(self._handler.limits, name) for name in LIMITS}

    def _learn(
        self,
        head: bytes,
        text: bytes,
        call: Call,
        layout: Layout,
        body_bytes: int,
        fixed: list[tuple[int, bytes]],
    ) -> None:
        """Learn that a head and a text mean this call, with other tensors, once they come again.

        Heads that differ each time need not be learnt.
        """
        if (key := (head, text)) in self._heads:
            return
        if self._seen_once.pop(key, key) is not None:
            if len(self._seen_once) >= MOST_HEADS:
                del self._seen_once[next(iter(self._seen_once))]
            self._seen_once[key] = None
            return
        if len(self._heads) >= MOST_HEADS:
            self.forget()
        number = next(self._numbers)
        self._known[number] = KnownHead(number, call, layout, self.form)
        self._heads.add(key)
        wait_s = later_s(call.terms.deadline_s)
        self._line.learn(head, text, number, call.count, wait_s, body_bytes, layout, fixed)

    # -- requests

    def _notified(self) -> None:
        if self._link.is_taken:
            self._link.expect()
        else:
            self._take(with_requests=False)

    def hold(self, seconds: float) -> None:
        """Let requests gather for this long before they are announced."""
        self._line.set("hold_s", seconds)

    def bundles(self, first_number: int) -> list[ExpressBundle]:
        """Take all requests that have come, in bundles."""
        bundles: list[ExpressBundle] = []
        for group, number, tokens, arrived_s in self._take(with_requests=True):
            known = self._known.get(number)
            if known is not None:
                bundle = self._bundle(first_number + len(bundles), group, known, tokens, arrived_s)
                if bundle is not None:
                    bundles.append(bundle)
                    self._open.update({token: (bundle, place) for place, token in enumerate(tokens)})
                    continue
            for place, token in enumerate(tokens):
                self._spawn(self._read(token, self._line.whole(group, place)))
            self._line.release(group)
        return bundles

    def _take(self, *, with_requests: bool) -> "list[Group]":
        """Take what the thread has; see to its notices, and let go of clients that left."""
        groups, notices, left, refused_here = self._line.take(with_requests, MOST_EXAMPLES)
        for notice in notices:
            self._take_notice(notice)
        for token in left:
            self._left(token)
        for number, requests in refused_here:
            if (known := self._known.get(number)) is not None:
                self._link.count_refused(known.model, requests * known.count)
                self._handler.tally.count_failed(known.call.api, [0.0] * requests)
            self._handler.tally.express += requests
            self._handler.tally.count_responses(self.protocol, "infer", self.too_many, np.zeros(requests))
        held_bytes = self._line.counts()[1]
        self._handler.ledger.hold(self._account, held_bytes - self._held_bytes)
        self._held_bytes = held_bytes
        return groups

    def _bundle(
        self, number: int, group: int, known: KnownHead, tokens: list[int], arrived_s: list[float]
    ) -> ExpressBundle | None:
        """Copy a group's inputs to where servers read them; None if they must be looked at one by one."""
        sizes = [len(tokens) * size for _, size in known.layout]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // ALIGN_BYTES) * ALIGN_BYTES)
        arena = self._link.arena
        room = None if arena is None else arena.take(starts[-1])
        place = memoryview(bytearray(starts[-1])) if room is None else room
        raws = [place[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        for at, raw in enumerate(raws):
            self._line.copy(group, at, raw)
        if not known.accepts(raws):
            if room is not None and arena is not None:
                arena.give_back(room)
            return None
        inputs = rows_of(raws, len(tokens) * known.count)
        return ExpressBundle(number, group, known, tokens, arrived_s, inputs, self, room)

    def _left(self, token: int) -> None:
        """A client has left while the gateway works for it."""
        if (found := self._open.pop(token, None)) is None:
            return
        bundle, place = found
        if bundle.leave(place):
            size = bundle.known.count
            self._link.leave(bundle.number, place * size, (place + 1) * size)
            took_s = monotonic() - bundle.arrived_s[place]
            self._handler.tally.count_response(self.protocol, "infer", self.left, took_s)

    # -- answers

    def write(
        self,
        bundle: ExpressBundle,
        places: list[int],
        receipt: Receipt,
        since_s: list[float],
        rows: list[bytes],
        starts: list[int],
    ) -> None:
        """Answer requests on one receipt, each `since_s` after the first; their rows begin at `starts`."""
        known, tally, first = bundle.known, self._handler.tally, receipt.request
        own_s = receipt.queue_s + receipt.compute_s
        network_s = np.maximum(receipt.latency_s - own_s - np.array(since_s), 0.0)
        self._line.answer_alike(
            [bundle.tokens[place] for place in places],
            starts,
            (1e3 * network_s).tolist(),
            [first + place * known.count for place in places],
            known.text(receipt),
            known.count,
            list(zip(rows, known.row_bytes, known.before_rows, strict=True)),
        )
        tally.count_calls(known.call.api, receipt, known.count, network_s)
        self._done(bundle, places, self.fine)

    def answer(self, bundle: ExpressBundle, place: int, answered: Answered) -> None:
        """Send the answer to one request."""
        call = bundle.known.call
        self._handler.tally.count_call(call.api, answered.receipts)
        self._send(bundle, [place], self._written(call, result_of(call, answered)), self.fine)

    def refuse(self, bundle: ExpressBundle, places: list[int], error: SlimError) -> None:
        """Tell requests why they have no answer; where there is too much, refuse the next at once."""
        text, code = self._refused(error)
        self._send(bundle, places, text, code)
        took_s = monotonic() - np.array(bundle.arrived_s)[places]
        self._handler.tally.count_failed(bundle.known.call.api, took_s.tolist())
        if isinstance(error, TooMany):
            closed_s = CLOSED_SHARE * bundle.known.call.terms.deadline_s
            closed_s = min(MOST_CLOSED_S, max(LEAST_CLOSED_S, closed_s))
            self._line.tell("close_for", bundle.known.number, text, monotonic() + closed_s)

    def _send(self, bundle: ExpressBundle, places: list[int], text: bytes, code: str) -> None:
        self._line.answer([bundle.tokens[place] for place in places], text)
        self._done(bundle, places, code)

    def _done(self, bundle: ExpressBundle, places: list[int], code: str) -> None:
        """Count requests that have their answers, and forget them."""
        for place in places:
            self._open.pop(bundle.tokens[place], None)
        self._handler.tally.express += len(places)
        arrived_s = np.array(bundle.arrived_s)[places]
        self._handler.tally.count_responses(self.protocol, "infer", code, monotonic() - arrived_s)

    def end(self, bundle: ExpressBundle) -> None:
        """Forget a bundle: nobody waits for it."""
        self._line.release(bundle.group)
        if bundle.room is not None and self._link.arena is not None:
            self._link.arena.give_back(bundle.room)
        self._link.done(bundle.number)

    # -- requests that must be read in Python after all

    def read_again(self, bundle: ExpressBundle, place: int) -> None:
        """Read a request anew: its model was replaced."""
        token = bundle.tokens[place]
        self._open.pop(token, None)
        self._spawn(self._read(token, self._line.whole(bundle.group, place)))

    def _report(self) -> None:
        """Count and log, once per second, what the thread turned away."""
        cuts = dict(zip(CUTS, self._line.cuts(), strict=True))
        fresh = {reason: count - self._cuts[reason] for reason, count in cuts.items()}
        fresh = {reason: count for reason, count in fresh.items() if count}
        self._cuts = cuts
        self._handler.tally.count_cuts(self.protocol, fresh)
        if fresh:
            what = "; ".join([f"{count} {CUTS[reason]}" for reason, count in fresh.items()])
            log.warning("%s: turned away in a second: %s", self.protocol, what)
        self._reporting = self._loop.call_later(REPORT_S, self._report)

    # -- the end

    async def stop(self, within_s: float) -> None:
        """Take no more connections, and answer what is under way, in a limited time."""
        for one in self._sockets:
            one.close()
        self._line.tell("drain")
        until_s = self._loop.time() + within_s
        while self._line.counts()[0] and self._loop.time() < until_s:
            await asyncio.sleep(DRAIN_LOOK_S)

    def abort(self) -> None:
        """Close all connections at once."""
        self._reporting.cancel()
        with suppress(ValueError, OSError):
            self._loop.remove_reader(self._line.fileno())
        self._line.stop()
        for one in self._sockets:
            one.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
