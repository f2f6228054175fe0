"""A client that costs little: one process, plain sockets, requests sent when they are due.

It shares the machine with the server it asks, so it does no more than it must: it sends bytes that were
written before the run, and looks at the status and the length of each answer only.
"""

import select
import socket
from collections import deque
from collections.abc import Sequence
from time import perf_counter

import numpy as np
from msgspec import Struct

CONNECTIONS = 900
"""Requests under way at most; one that is due beyond that leaves when a connection is free."""

PATIENCE_S = 5.0
"""How long the last answers may take."""


class Seen(Struct):
    """What became of one request, in seconds from the start of the run; status 0: no answer."""

    due_s: float
    sent_s: float = 0.0
    done_s: float = 0.0
    status: int = 0

    @property
    def took_s(self) -> float:
        """How long the answer took from the moment when the request left."""
        return self.done_s - self.sent_s


class _Connection:
    """One connection, and the request that it carries."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.seen: Seen | None = None
        self.unsent = memoryview(b"")
        self.got = b""


class OpenLoop:
    """Sends requests at given times, whatever the server does."""

    def __init__(self, port: int, requests: Sequence[bytes]) -> None:
        self._address, self._requests = ("127.0.0.1", port), requests
        self._poll = select.epoll()
        self._all: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []

    def run(self, due_s: Sequence[float]) -> list[Seen]:
        """Send one request at each of these times, counted from now; return what became of each."""
        zero_s = perf_counter()
        seen = [Seen(zero_s + at_s) for at_s in due_s]
        waiting, under_way, place = deque(seen), 0, 0
        end_s = zero_s + (due_s[-1] if len(due_s) else 0.0) + PATIENCE_S
        while (waiting or under_way) and (now_s := perf_counter()) < end_s:
            while waiting and waiting[0].due_s <= now_s and (free := self._free()) is not None:
                self._send(free, waiting.popleft(), self._requests[place % len(self._requests)])
                under_way, place = under_way + 1, place + 1
            wait_s = max(0.0, waiting[0].due_s - perf_counter()) if waiting else 0.1
            if wait_s == 0.0 and len(self._all) >= CONNECTIONS and not self._idle:
                wait_s = 0.1
            for number, events in self._poll.poll(wait_s):
                connection = self._all[number]
                if events & select.EPOLLOUT:
                    self._send_rest(connection)
                if events & ~select.EPOLLOUT:
                    under_way -= self._read(connection)
        for connection in list(self._all.values()):
            if connection.seen is not None:
                self._close(connection)
        for one in seen:
            one.due_s, one.sent_s, one.done_s = one.due_s - zero_s, one.sent_s - zero_s, one.done_s - zero_s
        return seen

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._all.values()):
            self._close(connection)

    def _free(self) -> _Connection | None:
        if self._idle:
            return self._idle.pop()
        if len(self._all) >= CONNECTIONS:
            return None
        connection = _Connection(self._address)
        self._all[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.EPOLLIN)
        return connection

    def _send(self, connection: _Connection, seen: Seen, request: bytes) -> None:
        seen.sent_s = perf_counter()
        connection.seen = seen
        try:
            sent = connection.socket.send(request)
        except OSError:
            sent = 0
        if sent < len(request):
            connection.unsent = memoryview(request)[sent:]
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, connection: _Connection) -> None:
        try:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        except OSError:
            return
        if not connection.unsent:
            self._poll.modify(connection.socket, select.EPOLLIN)

    def _read(self, connection: _Connection) -> int:
        """Read what is there; return 1 if the request of this connection has ended."""
        try:
            data = connection.socket.recv(2**16)
        except OSError:
            data = b""
        seen = connection.seen
        if not data or seen is None:
            self._close(connection)
            return int(seen is not None)
        got = connection.got = connection.got + data
        head = got.find(b"\r\n\r\n")
        if head < 0:
            return 0
        lower = got[:head].lower()
        length = int(lower.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(got) < head + 4 + length:
            return 0
        seen.done_s, seen.status = perf_counter(), int(got[9:12])
        connection.seen, connection.got = None, b""
        if b"connection: close" in lower or connection.unsent:
            self._close(connection)
        else:
            self._idle.append(connection)
        return 1

    def _close(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        del self._all[connection.socket.fileno()]
        connection.socket.close()


def poisson(rate_per_s: float, seconds: float, rng: np.random.Generator) -> list[float]:
    """Draw arrival times."""
    count = rng.poisson(rate_per_s * seconds)
    times: list[float] = np.sort(rng.uniform(0.0, seconds, count)).tolist()
    return times
