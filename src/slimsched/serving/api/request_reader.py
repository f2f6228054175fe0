"""Turns the bytes of a connection into HTTP requests, and refuses what is wrong or too large as it arrives.

It opens no socket and reads no clock. llhttp parses; the reader keeps the parts, within the limits. A large
body goes past the parser, straight into memory that servers share.
"""

from collections import deque
from enum import Enum

import httptools
from msgspec import Struct

from slimsched.serving.api.limits import Limits
from slimsched.serving.execution.live.input_arena import ALIGN_BYTES, InputArena

END = b"\r\n\r\n"
SLICE_BYTES = 8 * 2**10
"""The parser gets no more of a head, or of a body of unknown length, at a time."""
LENGTH_DIGITS = 15
MANY_PARTS, SMALL_PART_BYTES = 1000, 64
"""A body in more parts than this must have larger ones on average: each part takes time."""


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A complete request; `size_bytes` is what it takes in memory."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | bytearray | memoryview
    room: memoryview | None = None  # what the body takes of the arena
    size_bytes: int = 0
    keep_alive: bool = True
    head: bytes = b""  # its first bytes, up to the body, if they came together


class Stage(Enum):
    """How far the next request has arrived."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class UnreadableError(Exception):
    """These bytes are not to be read any further; the status and the reason to send."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def read_length(text: str) -> int | None:
    """Read a length from a header; None if it is not a plain number of a sensible size."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LENGTH_DIGITS else None


class RequestReader:
    """Complete requests are in `complete`; `stage` and the sizes tell about the one that arrives now."""

    def __init__(self, limits: Limits, arena: InputArena | None = None) -> None:
        self._limits, self._arena = limits, arena
        self._parser = httptools.HttpRequestParser(self)
        self.complete: deque[HttpRequest] = deque()
        self.begun = 0  # how many requests have begun
        self.stage = Stage.NOTHING
        self.awaits_continue = False  # the client wants to be told before it sends the body
        self.body_bytes = self._head_bytes = self._unseen_bytes = self._body_left = self._parts = 0
        self._body: bytes | bytearray | memoryview = b""
        self._room: memoryview | None = None
        self.rest: memoryview | None = None
        """Where the rest of a large body goes."""
        self._got_somewhere = False
        self._reset()

    @property
    def held_bytes(self) -> int:
        """What the request that arrives now takes in memory."""
        return self._head_bytes + self.body_bytes + self._unseen_bytes

    def step(self, data: bytes, at: int) -> int:
        """Up to where `feed` may get the data: the end of a head, or of a body whose length is known.

        So requests become complete one by one, and the caller can stop between them.
        """
        if self._body_left > 0:
            return at + self._body_left
        end = data.find(END, at, at + SLICE_BYTES)
        return at + SLICE_BYTES if end < 0 else end + len(END)

    def feed(self, data: bytes | memoryview) -> None:
        """Read some bytes; raises UnreadableError."""
        if self.rest is not None:
            self._fill(data)
            return
        self._got_somewhere = False
        if self.stage is not Stage.BODY:
            is_whole = self.stage is Stage.NOTHING and data[-len(END) :] == END
            self._head = bytes(data) if is_whole else b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise UnreadableError(400, "upgrades are not supported; use plain HTTP/1.1") from None
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, UnreadableError):
                raise error.__context__ from None
            raise UnreadableError(400, f"not HTTP/1.1: {error}") from None
        if self._got_somewhere:
            self._unseen_bytes = 0
        else:  # half a header, which the parser keeps, or something of a body that does not count
            self._unseen_bytes += len(data)
            if self._unseen_bytes > self._limits.head_bytes:
                raise self._head_too_large()

    def filled(self, count: int) -> None:
        """This many bytes were written into `rest`."""
        assert self.rest is not None
        self.rest = self.rest[count:]
        self.body_bytes += count
        self._body_left -= count
        self.awaits_continue = False
        if not self._body_left:
            self._add()
            self._parser = httptools.HttpRequestParser(self)  # the old one still waits for the body

    def drop(self) -> None:
        """Forget the request that arrives now."""
        self._give_back(self._room)
        self._reset()
        self.stage = Stage.NOTHING

    def release(self, request: HttpRequest) -> None:
        """Give back what a request took of the arena, once nobody needs its body."""
        self._give_back(request.room)

    def close(self) -> None:
        """Forget every request that nobody has asked for."""
        self.drop()
        while self.complete:
            self.release(self.complete.popleft())

    # -- called by httptools

    def on_message_begin(self) -> None:
        """Start a new request."""
        self.begun += 1
        self.stage = Stage.HEAD

    def on_url(self, url: bytes) -> None:
        """Keep a part of the request's target."""
        self._head_bytes += len(url)
        self._url += url
        if self._head_bytes > self._limits.head_bytes:
            raise self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; one that follows the body means nothing here."""
        self._head_bytes += len(name) + len(value)
        headers, limits = self._headers, self._limits
        if self.stage is Stage.HEAD:
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        if self._head_bytes > limits.head_bytes or len(headers) > limits.headers:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """Refuse a body that is too large before it arrives, or note that the client wants to be told."""
        self.stage, self._got_somewhere = Stage.BODY, True
        length = read_length(self._headers.get("content-length", "0"))
        if length is None or length > self._limits.body_bytes:
            raise UnreadableError(413, self._too_large())
        self._body_left = length
        if "transfer-encoding" not in self._headers:
            self._lay_down(length)
        self.awaits_continue = self._headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, up to the limit."""
        self._got_somewhere, self.awaits_continue = True, False
        if self.rest is not None:
            self._fill(body)
            return
        self._body_left -= len(body)
        if not self.body_bytes:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:  # not a list: many small parts would each take more than they hold
            self._body = bytearray(self._body) + body
        self.body_bytes += len(body)
        if self.body_bytes > self._limits.body_bytes:
            raise UnreadableError(413, self._too_large())
        self._parts += 1
        if self._parts > MANY_PARTS and self.body_bytes < SMALL_PART_BYTES * self._parts:
            raise UnreadableError(400, "the body comes in very small parts; send larger chunks")

    def on_message_complete(self) -> None:
        """Add the complete request."""
        self._got_somewhere, self.awaits_continue = True, False
        self._add()

    # -- ours

    def _add(self) -> None:
        self.stage = Stage.NOTHING
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=self._url.decode("latin-1").partition("?")[0],
            headers=self._headers,
            body=self._body,
            room=self._room,
            size_bytes=self._head_bytes + self.body_bytes,
            keep_alive=self._parser.should_keep_alive(),
            head=self._head,
        )
        self.complete.append(request)
        self._reset()

    def _lay_down(self, length: int) -> None:
        """Find room for a large body in the arena, such that its first tensor is aligned."""
        if self._arena is None:
            return
        json_bytes = read_length(self._headers.get("inference-header-content-length", "0")) or 0
        shift = -json_bytes % ALIGN_BYTES
        self._room = self._arena.take(length + shift)
        if self._room is not None:
            self._body = self.rest = self._room[shift : shift + length]

    def _fill(self, data: bytes | memoryview) -> None:
        assert self.rest is not None
        self.rest[: len(data)] = data
        self.filled(len(data))

    def _give_back(self, room: memoryview | None) -> None:
        if room is not None and self._arena is not None:
            self._arena.give_back(room)

    def _head_too_large(self) -> UnreadableError:
        most = f"{self._limits.headers} headers and {self._limits.head_bytes} bytes"
        return UnreadableError(431, f"the request's headers are more than {most}; send fewer")

    def _too_large(self) -> str:
        return f"the body is larger than {self._limits.body_bytes} bytes; send fewer images per request"

    def _reset(self) -> None:
        self._url = self._head = b""
        self._headers: dict[str, str] = {}
        self._body = b""
        self._room = self.rest = None
        self.body_bytes = self._head_bytes = self._unseen_bytes = self._body_left = self._parts = 0
