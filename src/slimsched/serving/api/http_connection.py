"""HTTP/1.1 on one connection: passes requests to a handler and writes the responses in order.

A connection keeps little: it stops reading while the client does not read its answers, or while enough
requests wait. A client that is too slow is disconnected; `check` is called regularly to find out.

Connections that are too many or too slow are ended; one that the compiled line lent is handed back to it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from slimsched.serving.api.http_requests import (
    HttpRequest,
    HttpResponse,
    RequestReader,
    Stage,
    UnreadableError,
    written,
)
from slimsched.serving.api.limits import Account, Ledger, Limits
from slimsched.serving.live.memory import InputArena

# -- The open HTTP connections: how many there may be, which are too slow, and how they end.

SWEEP_S = 0.25
ROOM_AFTER_S = 5.0
"""At the limit, a connection that was idle for longer makes room for a new one."""
ABORTED_WITHIN_S = 1.0


class Connections:
    """Checks all connections regularly; one check for all costs less than a timer for each request."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._open: set[HttpProtocol] = set()
        self.unread: dict[HttpProtocol, None] = {}  # those whose clients are behind, the first one first
        self._sweeping: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check."""
        loop = asyncio.get_running_loop()
        for connection in list(self._open):
            connection.check(loop.time())
        self._sweeping = loop.call_later(SWEEP_S, self.start)

    def add(self, connection: "HttpProtocol", limits: Limits) -> str:
        """Count a new connection; return why it cannot be served, or nothing."""
        self._open.add(connection)
        account = connection.account
        is_proxy = account.address in self.ledger.proxies
        is_greedy = account.connections > limits.connections_per_address and not is_proxy
        if is_greedy and not self._make_room(account):
            return f"{limits.connections_per_address} connections are open from this address"
        if len(self._open) > limits.connections and not self._make_room(None):
            return f"{limits.connections} connections are open"
        return ""

    def remove(self, connection: "HttpProtocol") -> None:
        """Forget a closed connection."""
        self._open.discard(connection)
        self.unread.pop(connection, None)

    def falls_behind(self, connection: "HttpProtocol", limits: Limits) -> None:
        """Note that a client does not read; the one behind for longest goes if all leave too much unread."""
        self.unread[connection] = None
        unread = sum(one.unread_bytes for one in self.unread)
        while unread > limits.unread_bytes:
            slowest = next(iter(self.unread))
            unread -= slowest.unread_bytes
            del self.unread[slowest]
            slowest.abort()

    async def stop(self, within_s: float) -> None:
        """Let each connection finish its answers; after the given time, close those that are left."""
        for connection in list(self._open):
            connection.close_when_done()
        await self._closed(within_s)
        for connection in list(self._open):
            connection.abort()
        await self._closed(ABORTED_WITHIN_S)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def abort(self) -> None:
        """Close all connections at once."""
        for connection in list(self._open):
            connection.abort()

    async def _closed(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while self._open and loop.time() < until_s:
            await asyncio.sleep(0.01)

    def _make_room(self, account: Account | None) -> bool:
        """Close the connection that was idle for longest, of one address or of any."""
        idle = [
            (one.idle_since_s, place, one)
            for place, one in enumerate(self._open)
            if one.idle_since_s is not None and account in (None, one.account)
        ]
        if not idle:
            return False
        since_s, _, longest = min(idle)
        if asyncio.get_running_loop().time() - since_s < ROOM_AFTER_S:
            return False
        longest.abort()
        return True


# -- A connection that was lent: another reader accepted it, and does not understand what its client sends.


class ConnectionLender(Protocol):
    """Reads requests that it understands by itself, and lends the connections of others."""

    def knows(self, request: HttpRequest) -> bool:
        """Whether it would understand this request."""

    def returned(self, lent: "LentConnection", file: int) -> None:
        """Take a connection back."""

    def lost(self, lent: "LentConnection") -> None:
        """A connection that was lent is closed."""


class LentConnection:
    """A connection that was lent: what has arrived of its next request, and what is not yet sent."""

    def __init__(self, lender: ConnectionLender, address: str, arrived: bytes, unsent: bytes) -> None:
        self.lender, self.address, self.arrived, self.unsent = lender, address, arrived, unsent
        self.is_over = False


HIGH_WATER_BYTES = 16 * 2**10
"""How much of the answers may wait to be read before the connection stops to make more."""
FREE_BYTES = 8 * 2**10
LINGER_S = 1.0
"""How long a refused client may go on sending; what it sends is thrown away."""


ASK_S = 1.0
"""How often a client that has ended its side, and waits for an answer, is asked whether it is still there."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

FULL = "too many bytes of requests are under way; try again"
_shared = memoryview(bytearray(256 * 2**10))
"""Where bytes arrive that are read at once; one connection after the other uses it."""

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
Refuse = Callable[[UnreadableError], HttpResponse]


class HttpProtocol(asyncio.BufferedProtocol):
    """Answers pipelined requests in order, and cancels the work of a client that leaves."""

    def __init__(
        self,
        handler: Handler,
        refuse: Refuse,
        connections: Connections,
        limits: Limits,
        arena: InputArena | None = None,
        lent: LentConnection | None = None,
    ) -> None:
        self._lent = lent
        self._handler, self._refuse, self._connections, self._limits = handler, refuse, connections, limits
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(limits, arena)
        self._unfed, self._unfed_at = b"", 0  # what came while reading was about to stop
        self._task: asyncio.Task[None] | None = None
        self._failure: UnreadableError | None = None
        self._closing = self._streaming = self._is_paused = self._is_direct = self._has_ended = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._current_bytes = self._held_bytes = self._written_bytes = 0
        self._begun, self._began_s, self._lingers_until_s = (0, Stage.NOTHING), 0.0, 0.0
        self._asked_s, self._is_old = 0.0, False
        self._behind: tuple[float, int, int] | None = None  # since when; read then, and to be read in time
        self.idle_since_s: float | None = None

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; refuse it above the limit."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._is_plain = transport.get_extra_info("sslcontext") is None  # TLS has no half of a connection
        peer = transport.get_extra_info("peername")
        self.account = self._connections.ledger.open(str(peer[0]) if isinstance(peer, tuple) else "")
        if why := self._connections.add(self, self._limits):
            self._fail(UnreadableError(503, f"{why}, which is the limit; try again"))
        else:
            self.idle_since_s = self._loop.time()
        if self._lent is not None:
            self._go_on(self._lent)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the request under way: its client has left."""
        self._connections.remove(self)
        self._connections.ledger.hold(self.account, -self._held_bytes)
        self._connections.ledger.close(self.account)
        self._reader.close()
        if self._task is not None:
            self._task.cancel()
        if self._lent is not None:
            self._lent.lender.lost(self._lent)

    def get_buffer(self, size_hint: int) -> memoryview:
        """Let a large body be received where it is to stay, everything else in memory that all share."""
        rest = self._reader.rest
        self._is_direct = rest is not None and not self._unfed and self._failure is None
        return rest if rest is not None and self._is_direct else _shared

    def buffer_updated(self, count: int) -> None:
        """Read requests, and start to answer if nothing is under way."""
        if self._failure is not None:
            return
        if self._is_direct:
            self._fill(count)
        else:
            data = bytes(_shared[:count])
            self._feed(self._unfed[self._unfed_at :] + data if self._unfed else data, 0)
        self._begin()

    def eof_received(self) -> bool:
        """Keep the connection open while requests are answered: the client may have ended its side only."""
        self._has_ended, self._asked_s = True, self._loop.time()
        return self._task is not None and self._is_plain

    def pause_writing(self) -> None:
        """Make no more answers: the client reads more slowly than we write."""
        self._writable.clear()
        self._pause_reading()
        self._connections.falls_behind(self, self._limits)

    def resume_writing(self) -> None:
        """Go on: the client has caught up."""
        self._writable.set()
        self._connections.unread.pop(self, None)

    # -- called for all connections

    @property
    def unread_bytes(self) -> int:
        """What was written and not sent yet."""
        return self._transport.get_write_buffer_size()

    def check(self, now_s: float) -> None:
        """End the connection if its client sends or reads too slowly, or was idle too long."""
        limits = self._limits
        if self._is_read_too_slowly(now_s):
            self.abort()
        elif self._task is not None:
            if self._has_ended and not self._streaming and now_s > self._asked_s + ASK_S:
                self._asked_s = now_s
                if not self._is_old:  # what is sent to a client that has left breaks the connection
                    self._transport.write(CONTINUE)
        elif self._failure is not None:
            if now_s > self._lingers_until_s:
                self._transport.close()
        elif self._reader.stage is Stage.HEAD:
            if now_s > self._began_s + limits.head_s:
                self._fail(UnreadableError(408, f"the headers did not arrive in {limits.head_s:g} s"))
        elif self._reader.stage is Stage.BODY:
            due_s = self._began_s + limits.grace_s + self._reader.body_bytes / limits.pace_bytes_per_s
            if now_s > due_s:
                pace = f"{limits.pace_bytes_per_s} bytes per second"
                self._fail(UnreadableError(408, f"the body arrives too slowly; send at least {pace}"))
        elif self.idle_since_s is not None and now_s > self.idle_since_s + limits.idle_s:
            self._transport.close()  # silently: a client would take a response for that of its next request

    def close_when_done(self) -> None:
        """Close once the waiting requests are answered. A stream never ends by itself, so it ends now."""
        self._closing = True
        if self._streaming and not self._writable.is_set():
            self.abort()  # the client does not read, so nothing more would reach it
        elif self._task is None or self._streaming:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, with whatever is not sent yet."""
        self.idle_since_s = None
        self._transport.abort()

    # -- reading

    def _go_on(self, lent: LentConnection) -> None:
        """Go on with a connection that was lent."""
        if lent.unsent:
            self._transport.write(lent.unsent)
        if lent.arrived and self._failure is None:
            self._feed(lent.arrived, 0)
            self._begin()
        lent.arrived = lent.unsent = b""
        self._loop.call_soon(self._still_pause)

    def _still_pause(self) -> None:
        """Pause once more: a transport begins to read after it has told that it is connected."""
        if self._is_paused and not self._transport.is_closing():
            self._transport.pause_reading()

    def _begin(self) -> None:
        """Start to answer, if a request is complete and nothing is under way."""
        if self._reader.complete and self._task is None:
            self.idle_since_s = None
            self._task = self._loop.create_task(self._answer())

    def _feed(self, data: bytes, at: int) -> None:
        """Give the reader the bytes, one request at a time; keep the rest when enough requests wait."""
        reader, size, self._unfed = self._reader, len(data), b""
        try:
            while at < size:
                if self._must_wait():
                    self._unfed, self._unfed_at = data, at
                    self._pause_reading()
                    break
                end = reader.step(data, at)
                reader.feed(data if not at and end >= size else memoryview(data)[at:end])
                at = end
            self._count_held()
            if (reader.body_bytes or self._unfed) and self._is_full():
                raise UnreadableError(503, FULL)
        except UnreadableError as error:
            self._fail(error)
            return
        if reader.stage is not Stage.NOTHING:
            self._note_progress()

    def _fill(self, count: int) -> None:
        """Count bytes that were received where they are to stay."""
        self._reader.filled(count)
        self._count_held()
        if self._is_full():
            self._fail(UnreadableError(503, FULL))
        elif self._reader.stage is not Stage.NOTHING:
            self._note_progress()
        if self._must_wait():
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _note_progress(self) -> None:
        """Keep when the head, or the body, of the next request began."""
        begun = self._reader.begun, self._reader.stage
        if begun != self._begun:
            self._begun, self._began_s = begun, self._loop.time()
        if self._reader.awaits_continue and self._task is None:
            self._reader.awaits_continue = False
            self._transport.write(CONTINUE)

    def _must_wait(self) -> bool:
        """Whether enough requests wait, or the client does not read its answers."""
        complete, limits = self._reader.complete, self._limits
        if not self._writable.is_set() or len(complete) >= limits.pipelined_requests:
            return True
        is_busy = bool(self._current_bytes or complete)
        return is_busy and self._held_bytes - self._current_bytes > limits.pipelined_bytes

    def _read_on(self) -> None:
        """Read on if there is room again."""
        if self._unfed:
            self._feed(self._unfed, self._unfed_at)
        if self._is_paused and self._failure is None and not self._must_wait():
            self._is_paused = False
            self._transport.resume_reading()

    def _count_held(self) -> None:
        """Tell the ledger what the requests of this connection take; a little counts as nothing."""
        reader = self._reader
        held = reader.held_bytes + self._current_bytes + len(self._unfed)
        for request in reader.complete:
            held += request.size_bytes
        if held < FREE_BYTES:
            held = 0
        if held != self._held_bytes:
            self._connections.ledger.hold(self.account, held - self._held_bytes)
            self._held_bytes = held

    def _is_full(self) -> bool:
        return self._connections.ledger.is_full(self.account, self._limits.held_bytes)

    # -- writing

    async def _answer(self) -> None:
        """Answer the waiting requests in order."""
        reader, is_known = self._reader, False
        try:
            while reader.complete:
                request = reader.complete.popleft()
                self._current_bytes, self._is_old = request.size_bytes, request.is_old
                if self._is_paused:
                    self._read_on()
                try:
                    response = await self._handler(request)
                finally:
                    reader.give_back(request.room)
                if not await self._write_answer(request, response):
                    return
                is_known = self._lent is not None and self._lent.lender.knows(request)
                del request, response
                self._current_bytes = 0
                if self._held_bytes:
                    self._count_held()
                if reader.complete:
                    await asyncio.sleep(0)  # others have their turn before the next of this client
                if not self._writable.is_set():
                    await self._writable.wait()
                if self._is_paused:
                    self._read_on()
        finally:
            self._task = None
        self.idle_since_s = self._began_s = self._loop.time()
        if self._failure is not None:
            self._write_failure(self._failure)
        elif self._closing or self._has_ended:
            self._transport.close()
        elif reader.stage is not Stage.NOTHING:
            self._note_progress()
        elif is_known and not (self._unfed or self._is_paused or self.unread_bytes):
            self._return()

    def _return(self) -> None:
        """Give the connection back to its lender: it is at rest, and its client is understood there."""
        lent, self._lent = self._lent, None
        assert lent is not None
        file = os.dup(self._transport.get_extra_info("socket").fileno())
        self._transport.abort()  # closes this end only
        lent.lender.returned(lent, file)

    async def _write_answer(self, request: HttpRequest, response: HttpResponse) -> bool:
        """Write the answer to a request; return whether the connection stays open.

        A stream is written as fast as the client reads it.
        """
        if response.stream is not None:
            self._streaming = True
            self._write(response, keep_alive=False)
            if request.method != "HEAD" and not self._closing:
                async for part in response.stream:
                    self._written_bytes += len(part)
                    self._transport.write(part)
                    await self._writable.wait()
            self._transport.close()
            return False
        keep_alive = request.keep_alive and not self._closing
        self._write(response, keep_alive, head_only=request.method == "HEAD", is_old=request.is_old)
        if not keep_alive:
            self._transport.close()
        return keep_alive

    def _write(
        self, response: HttpResponse, keep_alive: bool, head_only: bool = False, is_old: bool = False
    ) -> None:
        whole = written(response, keep_alive=keep_alive, head_only=head_only, is_old=is_old)
        self._written_bytes += len(whole)
        self._transport.write(whole)

    def _fail(self, failure: UnreadableError) -> None:
        """Write a refusal after the answers under way, then close: the connection is not to be trusted."""
        self._failure = failure
        failure.origin = self._reader.origin
        self._reader.drop()
        self._unfed = b""
        self._count_held()
        if self._task is None and not self._reader.complete:
            self._write_failure(failure)

    def _write_failure(self, failure: UnreadableError) -> None:
        """Say what is wrong, and let the client read it: closing while it still sends would reset it."""
        self._write(self._refuse(failure), keep_alive=False)
        self._lingers_until_s = self._loop.time() + LINGER_S
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._reader.begun and not self._has_ended and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _is_read_too_slowly(self, now_s: float) -> bool:
        """Whether the client read neither what waited for it, nor at the pace, in a whole period of grace."""
        unread_bytes = self.unread_bytes
        if not unread_bytes:
            self._behind = None
            return False
        limits, read_bytes = self._limits, self._written_bytes - unread_bytes
        is_slow = False
        if self._behind is not None:
            since_s, read_then, wanted = self._behind
            if now_s < since_s + limits.grace_s:
                return False
            is_slow = read_bytes - read_then < wanted
        wanted = min(unread_bytes, int(limits.pace_bytes_per_s * limits.grace_s))
        self._behind = now_s, read_bytes, wanted
        return is_slow
