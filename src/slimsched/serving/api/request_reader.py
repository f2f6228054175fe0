"""Turns the bytes of a connection into HTTP requests, and refuses what is wrong or too large as it arrives.

It opens no socket and reads no clock. llhttp parses; the reader keeps the parts, within the limits.
"""

from collections import deque
from enum import Enum

import httptools
from msgspec import Struct

from slimsched.serving.api.limits import Limits

SLICE_BYTES = 8 * 2**10
"""The parser gets no more at a time, unless a body follows: this much may hold hundreds of requests."""
LENGTH_DIGITS = 15
MANY_PARTS, SMALL_PART_BYTES = 1000, 64
"""A body in more parts than this must have larger ones on average: each part takes time."""


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A complete request; `size_bytes` is what it takes in memory."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | bytearray
    size_bytes: int = 0
    keep_alive: bool = True


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

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self.complete: deque[HttpRequest] = deque()
        self.begun = 0  # how many requests have begun
        self.stage = Stage.NOTHING
        self.awaits_continue = False  # the client wants to be told before it sends the body
        self.body_bytes = self._head_bytes = self._unseen_bytes = self._body_left = self._parts = 0
        self._body: bytes | bytearray = b""
        self._got_somewhere = False
        self._reset()

    @property
    def held_bytes(self) -> int:
        """What the request that arrives now takes in memory."""
        return self._head_bytes + self.body_bytes + self._unseen_bytes

    @property
    def step_bytes(self) -> int:
        """How many bytes `feed` may get at once."""
        return max(SLICE_BYTES, self._body_left)

    def feed(self, data: bytes | memoryview) -> None:
        """Read some bytes; raises UnreadableError."""
        self._got_somewhere = False
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
            self._check_head(self._unseen_bytes)

    def drop(self) -> None:
        """Forget the request that arrives now."""
        self._reset()
        self.stage = Stage.NOTHING

    # -- called by httptools

    def on_message_begin(self) -> None:
        """Start a new request."""
        self._reset()
        self.begun += 1
        self.stage = Stage.HEAD

    def on_url(self, url: bytes) -> None:
        """Keep a part of the request's target."""
        self._count_head(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; one that follows the body means nothing here."""
        self._count_head(len(name) + len(value))
        if self.stage is Stage.HEAD:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
            if len(self._headers) > self._limits.headers:
                raise UnreadableError(431, f"more than {self._limits.headers} headers; send fewer")

    def on_headers_complete(self) -> None:
        """Refuse a body that is too large before it arrives, or note that the client wants to be told."""
        self.stage, self._got_somewhere = Stage.BODY, True
        length = read_length(self._headers.get("content-length", "0"))
        if length is None or length > self._limits.body_bytes:
            raise UnreadableError(413, self._too_large())
        self._body_left = length
        self.awaits_continue = self._headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, up to the limit."""
        self._got_somewhere, self.awaits_continue = True, False
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
        self.stage = Stage.NOTHING
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=self._url.decode("latin-1").partition("?")[0],
            headers=self._headers,
            body=self._body,
            size_bytes=self._head_bytes + self.body_bytes,
            keep_alive=self._parser.should_keep_alive(),
        )
        self.complete.append(request)
        self._reset()

    # -- ours

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        self._check_head(self._head_bytes)

    def _check_head(self, size: int) -> None:
        if size > self._limits.head_bytes:
            raise UnreadableError(
                431, f"the request's headers take more than {self._limits.head_bytes} bytes; send fewer"
            )

    def _too_large(self) -> str:
        return f"the body is larger than {self._limits.body_bytes} bytes; send fewer images per request"

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = b""
        self.body_bytes = self._head_bytes = self._unseen_bytes = self._body_left = self._parts = 0
