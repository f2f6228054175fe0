"""The express line: inference calls whose heads are known are read without Python, many at a time.

A thread of its own (`express.cpp`) accepts connections and compares the head of each request with those it
has learnt. What it does not know it lends, with the connection, to the protocol in Python; if that request
turns out to be a plain inference call, the thread learns its head and gets the connection back.

Where the compiled part is missing, with TLS, and with SLIM_PURE=1 in the environment, every connection is
served in Python from the start.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic

import numpy as np

from slimsched.kernel.errors import SlimError
from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.call import Call
from slimsched.serving.api.desk import CLIENT_LEFT, Desk
from slimsched.serving.api.express_bundle import ExpressBundle
from slimsched.serving.api.http_message import raw_layout, write_answer
from slimsched.serving.api.http_protocol import Handler, HttpProtocol
from slimsched.serving.api.http_response import HttpResponse, refused, response_of, written
from slimsched.serving.api.known_head import START, KnownHead, is_plain
from slimsched.serving.api.lent_connection import LentConnection
from slimsched.serving.api.receipt import InferenceResult, write_receipt
from slimsched.serving.api.refusal import RefusalError, TooMany
from slimsched.serving.api.request_reader import HttpRequest, RequestReader, read_length
from slimsched.serving.domain.bundling import MOST_EXAMPLES, later_s
from slimsched.serving.execution.live.input_arena import ALIGN_BYTES
from slimsched.serving.execution.live.parcel import Answered, Receipt
from slimsched.serving.execution.live.wakefulness import AWAKE_S, has_many_cores

try:
    from slimsched.serving.api import _express
except ImportError:  # not compiled here
    is_available = False
else:
    is_available = not os.environ.get("SLIM_PURE")

CLOSED_SHARE, LEAST_CLOSED_S, MOST_CLOSED_S = 0.01, 0.0005, 0.005
"""After a refusal, the same call is refused without asking for this share of its deadline, within limits."""

HELD_SHARE = 0.5
"""Share of the bytes of all requests that may be here."""

DRAIN_LOOK_S = 0.01
MOST_HEADS = 256
"""When this many heads are known, all are forgotten."""


class Express:
    """Drives the thread: takes its requests, answers them, and lends its connections to the protocol."""

    def __init__(
        self,
        desk: Desk,
        link: BundleLink,
        connect: Callable[[LentConnection], HttpProtocol],
        handle: Handler,
        sockets: Sequence[socket.socket],
    ) -> None:
        self._desk, self._link, self._connect, self._handle = desk, link, connect, handle
        self._sockets = sockets
        self._native = _express.Express([one.fileno() for one in sockets])
        self._loop, self._tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        self._numbers = count()
        self._known: dict[int, KnownHead] = {}
        self._heads: set[tuple[bytes, bytes]] = set()
        self._seen_once: dict[tuple[bytes, bytes], None] = {}  # the oldest first
        self._open: dict[int, tuple[ExpressBundle, int]] = {}  # requests with the gateway, by token
        self._account, self._held_bytes = desk.ledger.open("express"), 0
        if has_many_cores():
            self._native.awake(AWAKE_S)
        link.express = self
        self.forget()
        self._loop.add_reader(self._native.fileno(), self._notified)

    # -- heads

    def forget(self) -> None:
        """Forget all heads: models or limits have changed."""
        self._known.clear()
        self._heads.clear()
        self._native.forget()
        limits = self._desk.limits
        held_bytes = int(HELD_SHARE * limits.held_bytes)
        self._native.limit(limits.connections, limits.connections_per_address, held_bytes, limits.idle_s)

    def learn(self, request: HttpRequest, call: Call, json_bytes: int | None) -> None:
        """Learn the head of a request that was read, if it can be known."""
        if json_bytes is None or not is_plain(request, call):
            return
        text = bytes(request.body[:json_bytes])
        layout, key = raw_layout(text, self._desk.limits, call.face), (request.head, text)
        if layout is None or key in self._heads or self._is_new(key):
            return
        if len(self._heads) >= MOST_HEADS:
            self.forget()
        number = next(self._numbers)
        self._known[number] = KnownHead(number, call, layout)
        self._heads.add(key)
        wait_s = later_s(call.terms.deadline_s)
        self._native.learn(request.head, text, number, call.count, wait_s, len(request.body), layout)

    def _is_new(self, key: tuple[bytes, bytes]) -> bool:
        """Whether a head comes for the first time: heads that differ each time need not be learnt."""
        if self._seen_once.pop(key, key) is None:
            return False
        if len(self._seen_once) >= MOST_HEADS:
            del self._seen_once[next(iter(self._seen_once))]
        self._seen_once[key] = None
        return True

    def knows(self, request: HttpRequest) -> bool:
        """Whether the thread would understand this request."""
        json_bytes = read_length(request.headers.get("inference-header-content-length", ""))
        return json_bytes is not None and (request.head, bytes(request.body[:json_bytes])) in self._heads

    # -- requests

    def _notified(self) -> None:
        if self._link.is_taken:
            self._link.expect()
        else:
            self._take(with_requests=False)

    def hold(self, seconds: float) -> None:
        """Let requests gather for this long before they are announced."""
        self._native.hold(seconds)

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
            self._read_all(group, tokens)
        return bundles

    def _take(self, *, with_requests: bool) -> list[tuple[int, int, list[int], list[float]]]:
        """Take what the thread has; lend connections, and let go of clients that left."""
        groups, lent, left, refused_here = self._native.take(with_requests, MOST_EXAMPLES)
        for one in lent:
            self._spawn(self._lend(*one))
        for token in left:
            self._left(token)
        for number, requests in refused_here:
            if (known := self._known.get(number)) is not None:
                self._link.count_refused(known.model, requests * known.count)
            self._desk.tally.express += requests
            self._desk.tally.count_responses("http", "infer", str(TooMany.status), np.zeros(requests))
        held_bytes = self._native.counts()[1]
        self._desk.ledger.hold(self._account, held_bytes - self._held_bytes)
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
        inputs = [place[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        for at, raw in enumerate(inputs):
            self._native.copy(group, at, raw)
        if not known.accepts(inputs):
            if room is not None and arena is not None:
                arena.give_back(room)
            return None
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
            self._desk.tally.count_response("http", "infer", CLIENT_LEFT, took_s)

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
        known, tally, first = bundle.known, self._desk.tally, receipt.request
        network_s = np.maximum(
            receipt.latency_s - receipt.queue_s - receipt.compute_s - np.array(since_s), 0.0
        )
        self._native.answer_alike(
            [bundle.tokens[place] for place in places],
            starts,
            (1e3 * network_s).tolist(),
            [first + place * known.count for place in places],
            START,
            *known.text(receipt),
            known.count,
            rows,
            known.row_bytes,
        )
        tally.count_calls(receipt, known.count, network_s)
        self._done(bundle, places, "200")

    def answer(self, bundle: ExpressBundle, place: int, answered: Answered) -> None:
        """Send the answer to one request."""
        call = bundle.known.call
        parameters = write_receipt(
            call.face.spec, answered.receipts, call.face.model.quality.accuracy, call.terms
        )
        result = InferenceResult(outputs=answered.outputs, parameters=parameters)
        self._desk.tally.count_examples(answered.receipts)
        self._send(bundle, [place], [written(answer_of(call, result))], "200")

    def refuse(self, bundle: ExpressBundle, places: list[int], error: SlimError) -> None:
        """Tell requests why they have no answer; where there is too much, refuse the next at once."""
        response = response_of(error) if isinstance(error, RefusalError) else refused(500, str(error))
        text = written(response)
        self._send(bundle, places, [text] * len(places), str(response.status))
        if isinstance(error, TooMany):
            closed_s = CLOSED_SHARE * bundle.known.call.terms.deadline_s
            closed_s = min(MOST_CLOSED_S, max(LEAST_CLOSED_S, closed_s))
            self._native.close_for(bundle.known.number, monotonic() + closed_s, text)

    def _send(self, bundle: ExpressBundle, places: list[int], texts: list[bytes], code: str) -> None:
        self._native.answer([bundle.tokens[place] for place in places], texts)
        self._done(bundle, places, code)

    def _done(self, bundle: ExpressBundle, places: list[int], code: str) -> None:
        """Count requests that have their answers, and forget them."""
        for place in places:
            self._open.pop(bundle.tokens[place], None)
        self._desk.tally.express += len(places)
        arrived_s = np.array(bundle.arrived_s)[places]
        self._desk.tally.count_responses("http", "infer", code, monotonic() - arrived_s)

    def end(self, bundle: ExpressBundle) -> None:
        """Forget a bundle: nobody waits for it."""
        self._native.release(bundle.group)
        if bundle.room is not None and self._link.arena is not None:
            self._link.arena.give_back(bundle.room)
        self._link.done(bundle.number)

    # -- requests that must be read in Python after all

    def _read_all(self, group: int, tokens: list[int]) -> None:
        for place, token in enumerate(tokens):
            self._spawn(self._read(token, self._native.whole(group, place)))
        self._native.release(group)

    def read_again(self, bundle: ExpressBundle, place: int) -> None:
        """Read a request anew: its model was replaced."""
        token = bundle.tokens[place]
        self._open.pop(token, None)
        self._spawn(self._read(token, self._native.whole(bundle.group, place)))

    async def _read(self, token: int, data: bytes) -> None:
        """Answer a request as the protocol does."""
        reader = RequestReader(self._desk.limits)
        at = 0
        while at < len(data):
            end = reader.step(data, at)
            reader.feed(data[at:end])
            at = end
        response = await self._handle(reader.complete.popleft())
        self._native.answer([token], [written(response)])

    # -- connections

    async def _lend(self, file: int, arrived: bytes, unsent: bytes, address: str, why: int) -> None:
        """Let the protocol serve a connection."""
        limits = self._desk.limits
        full = {1: f"{limits.connections} connections are open"}
        full[2] = f"{limits.connections_per_address} connections are open from this address"
        lent = LentConnection(self, address, arrived, unsent, full.get(why, ""))
        try:
            connection = socket.socket(fileno=file)
            await self._loop.connect_accepted_socket(lambda: self._connect(lent), connection)
        except OSError:  # the client has left meanwhile
            self.lost(lent)

    def returned(self, lent: LentConnection, file: int) -> None:
        """Take a connection back: the thread understands what its client sends."""
        lent.is_over = True
        self._native.adopt(file, lent.address)

    def lost(self, lent: LentConnection) -> None:
        """A connection that was lent is closed."""
        if not lent.is_over:
            lent.is_over = True
            self._native.gone(lent.address)

    async def stop(self, within_s: float) -> None:
        """Take no more connections, and answer what is under way, in a limited time."""
        for one in self._sockets:
            one.close()
        self._native.drain()
        until_s = self._loop.time() + within_s
        while self._native.counts()[0] and self._loop.time() < until_s:
            await asyncio.sleep(DRAIN_LOOK_S)

    def abort(self) -> None:
        """Close all connections at once."""
        with suppress(ValueError, OSError):
            self._loop.remove_reader(self._native.fileno())
        self._native.stop()
        for one in self._sockets:
            one.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def answer_of(call: Call, answered: InferenceResult) -> HttpResponse:
    """Return an answer as a response."""
    body, json_bytes = write_answer(call, answered)
    if json_bytes is None:
        return HttpResponse(status=200, body=body)
    headers = {"inference-header-content-length": str(json_bytes)}
    return HttpResponse(status=200, body=body, content_type="application/octet-stream", headers=headers)


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
