"""A small HTTP/1.1 client for the load generator: a pool of kept-alive connections."""

import asyncio
import ssl
from collections import deque
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from slimsched.core.config import ConfigError, SlimError

LOST = 0
"""The status of an exchange whose connection broke before the answer."""


class Reply(Struct, frozen=True):
    """A response as received; `json_bytes` is the length of its JSON if raw tensors follow."""

    status: int
    body: bytes
    json_bytes: int | None


class Exchange(Protocol):
    """One request and its reply. The pool tells it when the request leaves and when the reply arrives."""

    def request(self) -> bytes:
        """Return the bytes to send; called at the moment they leave."""
        ...

    def replied(self, reply: Reply) -> None:
        """Take the reply; called exactly once."""
        ...


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, pool: "HttpPool") -> None:
        self._pool = pool
        self._exchange: Exchange | None = None
        self._json_bytes: int | None = None
        self._begin()

    def ask(self, exchange: Exchange) -> None:
        """Send a request."""
        self._exchange = exchange
        self._transport.write(exchange.request())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the open connection."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Report the exchange under way as lost, whichever side closed the connection."""
        self._pool.lost(self)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.replied(Reply(LOST, str(error or "closed by the server").encode(), None))

    def data_received(self, data: bytes) -> None:
        """Feed bytes of a response to the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the length of the JSON; no other header matters."""
        if name.lower() == b"inference-header-content-length":
            self._json_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the complete reply over, and free or close the connection."""
        exchange, self._exchange = self._exchange, None
        reply = Reply(self._parser.get_status_code(), b"".join(self._body), self._json_bytes)
        keep = self._parser.should_keep_alive()
        self._begin()
        if keep:
            self._pool.free(self)
        else:
            self._transport.close()
        if exchange is not None:
            exchange.replied(reply)

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._json_bytes = None


class HttpPool:
    """Opens connections as they are needed, up to a limit. Exchanges beyond the limit wait in a queue."""

    def __init__(self, url: str, limit: int, ca_file: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{url}' is not a server address; write it as http://127.0.0.1:8000")
        self.host = parts.netloc
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._address = (parts.hostname, parts.port or (443 if self._tls else 80))
        self._url, self._limit = url, limit
        self._idle: deque[_Connection] = deque()  # used in turn, to reach every process of the server
        self._all: set[_Connection] = set()
        self._opening = 0
        self._queue: deque[Exchange] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def warm_up(self, connections: int) -> None:
        """Open some connections before the run; raises an error if no server listens."""
        try:
            self._opening += connections
            await asyncio.gather(*[self._open() for _ in range(connections)])
        except OSError as error:
            raise SlimError(f"no server at {self._url} ({error}); start one with: slim serve") from None

    def ask(self, exchange: Exchange) -> None:
        """Send a request on an idle connection, on a new one, or on the next that becomes free."""
        if self._idle:
            self._idle.popleft().ask(exchange)
            return
        self._queue.append(exchange)
        if len(self._all) + self._opening < self._limit:
            self._opening += 1  # counted now: many requests may come before the task starts
            task = asyncio.get_running_loop().create_task(self._open_or_fail())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def free(self, connection: _Connection) -> None:
        """Give a free connection the next exchange in the queue, or keep it idle."""
        if self._queue:
            connection.ask(self._queue.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Forget a closed connection."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection; exchanges under way count as lost."""
        for connection in list(self._all):
            connection.close()

    async def _open(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: _Connection(self), *self._address, ssl=self._tls
            )
        finally:
            self._opening -= 1
        self._all.add(connection)
        self.free(connection)

    async def _open_or_fail(self) -> None:
        try:
            await self._open()
        except OSError as error:
            if self._queue:
                self._queue.popleft().replied(Reply(LOST, str(error).encode(), None))
