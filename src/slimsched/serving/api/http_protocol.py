"""HTTP/1.1 on one connection: parses requests, passes them to a handler, writes the responses in order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import httptools
from msgspec import Struct

IDLE_LIMIT_S = 75.0
HEAD_LIMIT_BYTES = 32 * 1024
PIPELINE_LIMIT = 32

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A complete request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class HttpResponse(Struct, frozen=True, kw_only=True):
    """A response with a body, or with a stream that runs until it or the connection ends."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
Refuse = Callable[[int, str], HttpResponse]


class HttpProtocol(asyncio.Protocol):
    """Parses with llhttp, answers pipelined requests in order, cancels the work of a client that leaves."""

    def __init__(
        self,
        handler: Handler,
        refuse: Refuse,
        body_limit_bytes: int,
        open_: "set[HttpProtocol]",
        open_limit: int,
    ) -> None:
        self._handler, self._refuse, self._body_limit = handler, refuse, body_limit_bytes
        self._open, self._open_limit = open_, open_limit
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[HttpRequest, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closing = self._streaming = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._failure: tuple[int, str] | None = None
        self._reset()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; refuse it above the limit."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self._open.add(self)
        self._last_data_s = self._loop.time()
        self._idle = self._loop.call_later(IDLE_LIMIT_S, self._check_idle)
        if len(self._open) > self._open_limit:
            self._fail(503, f"{self._open_limit} connections are open, which is the limit; try again")

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the request under way: its client has left."""
        self._open.discard(self)
        self._idle.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed bytes to the parser; refuse what is not HTTP/1.1."""
        if self._failure is not None:
            return
        self._last_data_s = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(400, "upgrades are not supported; use plain HTTP/1.1")
        except httptools.HttpParserError as error:
            if self._failure is None:
                self._fail(400, f"not HTTP/1.1: {error}")

    def pause_writing(self) -> None:
        """Hold a stream back: the client reads more slowly than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue a stream: the client has caught up."""
        self._writable.set()

    def close_when_done(self) -> None:
        """Close once the waiting requests are answered. A stream never ends by itself, so it ends now."""
        self._closing = True
        if self._streaming and not self._writable.is_set():
            self._transport.abort()  # the client does not read, so nothing more would reach it
        elif self._task is None or self._streaming:
            self._transport.close()

    # -- httptools

    def on_message_begin(self) -> None:
        """Start a new request."""
        self._reset()

    def on_url(self, url: bytes) -> None:
        """Keep a part of the request's target."""
        self._count_head_bytes(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header."""
        self._count_head_bytes(len(name) + len(value))
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Refuse a body that is too large before it arrives, or tell the client to continue."""
        length = self._headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > self._body_limit:
            self._fail(413, self._too_large())
        elif self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, up to the limit."""
        self._size += len(body)
        if self._size > self._body_limit:
            self._fail(413, self._too_large())
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the complete request and start to answer if nothing is under way."""
        if self._failure is not None:
            return
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=self._url.decode("latin-1").partition("?")[0],
            headers=self._headers,
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
        )
        self._waiting.append((request, self._parser.should_keep_alive()))
        if len(self._waiting) >= PIPELINE_LIMIT:
            self._transport.pause_reading()
        if self._task is None:
            self._task = self._loop.create_task(self._answer())

    # -- ours

    async def _answer(self) -> None:
        """Answer the waiting requests in order."""
        try:
            while self._waiting:
                request, keep_alive = self._waiting.popleft()
                self._transport.resume_reading()
                response = await self._handler(request)
                if response.stream is not None:
                    await self._write_stream(response, response.stream, head_only=request.method == "HEAD")
                    return
                keep_alive = keep_alive and not self._closing
                self._write(response, keep_alive, head_only=request.method == "HEAD")
                if not keep_alive:
                    self._transport.close()
                    return
        finally:
            self._task = None
        if self._failure is not None:
            self._write_failure()
        elif self._closing:
            self._transport.close()

    async def _write_stream(
        self, response: HttpResponse, stream: AsyncIterator[bytes], head_only: bool
    ) -> None:
        """Write a stream as fast as the client reads it, then close the connection."""
        self._streaming = True
        self._write(response, keep_alive=False)
        if not head_only and not self._closing:
            async for part in stream:
                self._transport.write(part)
                await self._writable.wait()
        self._transport.close()

    def _write(self, response: HttpResponse, keep_alive: bool, head_only: bool = False) -> None:
        lines = [
            f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Error')}",
            f"content-type: {response.content_type}",
            *([] if response.stream is not None else [f"content-length: {len(response.body)}"]),
            *[f"{name}: {value}" for name, value in response.headers.items()],
        ]
        if not keep_alive:
            lines.append("connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        self._transport.write(head if head_only else head + response.body)

    def _fail(self, status: int, why: str) -> None:
        """Write a refusal after the answers under way, then close: the connection is not to be trusted."""
        self._failure = (status, why)
        if self._task is None:
            self._write_failure()

    def _write_failure(self) -> None:
        assert self._failure is not None
        self._write(self._refuse(*self._failure), keep_alive=False)
        self._transport.close()

    def _check_idle(self) -> None:
        """Close a connection that was idle too long, unless it waits for us; otherwise check again later."""
        left_s = self._last_data_s + IDLE_LIMIT_S - self._loop.time()
        if self._task is not None or left_s > 0.0:
            self._idle = self._loop.call_later(left_s if left_s > 0.0 else IDLE_LIMIT_S, self._check_idle)
        elif self._headers or self._url:
            self._fail(408, "the request did not arrive whole in time")
        else:
            self._transport.close()

    def _count_head_bytes(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_LIMIT_BYTES and self._failure is None:
            self._fail(431, f"the request's headers take more than {HEAD_LIMIT_BYTES} bytes; send fewer")

    def _too_large(self) -> str:
        return f"the body is larger than {self._body_limit} bytes; send fewer examples per request"

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = self._head_bytes = 0
