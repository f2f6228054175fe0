"""Turns the bytes of a connection into HTTP requests, and refuses what is wrong or too large as it arrives.

It opens no socket and reads no clock. llhttp parses; the reader keeps the parts, within the limits. A large
body goes past the parser, straight into memory that servers share.
"""

import re
from collections import deque
from enum import Enum

import httptools
from msgspec import Struct

from slimsched.serving.api.limits import Limits
from slimsched.serving.api.request_target import (
    UnreadableError,
    check_host,
    check_transfer_encoding,
    path_of,
)
from slimsched.serving.live.memory import ALIGN_BYTES, InputArena

END = b"\r\n\r\n"
SLICE_BYTES = 8 * 2**10
"""The parser gets no more of a head, or of a body of unknown length, at a time."""
LENGTH_DIGITS = 15
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY")
METHODS = {one.encode(): one for one in _METHODS}
"""The methods that are understood, whether or not a path takes them."""
_OTHER_METHOD = re.compile(rb"(?:\r\n)*[!#-'*+.^_`|~0-9A-Za-z-]+ \S+ HTTP/\d")
"""A request with a method that the parser does not know."""
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
    is_old: bool = False  # HTTP/1.0
    head: bytes = b""  # its first bytes, up to the body, if they came together


class Stage(Enum):
    """How far the next request has arrived."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


def read_length(text: str) -> int | None:
    """Read a length from a header; None if it is not a plain number of a sensible size."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LENGTH_DIGITS else None


class _Head(Struct, frozen=True, kw_only=True):
    """What a head means."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = {}
    keep_alive: bool = True
    is_old: bool = False
    is_chunked: bool = False
    is_upgrade: bool = False  # it asks for another protocol, which is passed over
    length: int = 0
    awaits_continue: bool = False


class RequestReader:
    """Complete requests are in `complete`; `stage` and the sizes tell about the one that arrives now."""

    def __init__(self, limits: Limits, arena: InputArena | None = None) -> None:
        self._limits, self._arena = limits, arena
        self._parser = self._new_parser()
        self.complete: deque[HttpRequest] = deque()
        self.begun = 0  # how many requests have begun
        self.stage = Stage.NOTHING
        self.awaits_continue = False  # the client wants to be told before it sends the body
        self.body_bytes = self._head_bytes = self._unseen_bytes = 0
        self._body_left = self._parts = self._fields = 0
        self._headers: dict[str, str] = {}
        self._body: bytes | bytearray | memoryview = b""
        self._room: memoryview | None = None
        self.rest: memoryview | None = None
        """Where the rest of a large body goes."""
        self._got_somewhere = self._is_upgrade = self._is_same_head = False
        self._last_head, self._last = b"", _Head()
        self._reset()

    @property
    def origin(self) -> str:
        """The web page's origin that the request that arrives now names, if it does."""
        return (self._last.headers if self._is_same_head else self._headers).get("origin", "")

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
            self._is_same_head = is_whole and self._head == self._last_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(bytes(data[upgrade.args[0] :]))
            return
        except httptools.HttpParserError as error:
            raise _unreadable(error, data) from None
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
            self._parser = self._new_parser()  # the old one still waits for the body

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
        if self._is_same_head:
            return
        self._head_bytes += len(url)
        self._url += url
        if self._head_bytes > self._limits.head_bytes:
            raise self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; one that follows the body means nothing here."""
        if self.stage is Stage.HEAD:
            if self._is_same_head:
                return
            headers = self._headers
            key, text = name.decode("latin-1").lower(), value.rstrip().decode("latin-1")
            if key in headers:
                if key == "host":
                    raise UnreadableError(400, "two headers Host; send one")
                text = f"{headers[key]}, {text}"
            headers[key] = text
        self._head_bytes += len(name) + len(value)
        self._fields += 1
        limits = self._limits
        if self._head_bytes > limits.head_bytes or self._fields > limits.headers:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """Refuse what must not be read any further before the body arrives."""
        self.stage, self._got_somewhere = Stage.BODY, True
        if self._is_same_head:  # it was checked, and means what it meant
            self._headers, self._head_bytes = self._last.headers, len(self._head)
        else:
            self._last, self._last_head = self._understood(), self._head
        head = self._last
        self._is_upgrade = head.is_upgrade
        if self._is_upgrade:
            return
        self._body_left = head.length
        if not head.is_chunked:
            self._lay_down(head.length)
        self.awaits_continue = head.awaits_continue

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
        if not self._is_upgrade:
            self._got_somewhere, self.awaits_continue = True, False
            self._add()

    # -- ours

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_version=True)  # we judge versions ourselves
        return parser

    def _understood(self) -> "_Head":
        """Return what this head means; raises UnreadableError where it is not to be answered."""
        parser, headers = self._parser, self._headers
        method, version = METHODS.get(parser.get_method()), parser.get_http_version()
        if not version.startswith("1."):
            raise UnreadableError(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
        if method is None:
            raise _unknown_method()
        is_old = version == "1.0"
        if (host := headers.get("host")) is not None:
            if host != self._last.headers.get("host"):
                check_host(host)
        elif not is_old:
            raise UnreadableError(400, "no header Host, which HTTP/1.1 requires; send one")
        if (coding := headers.get("transfer-encoding")) is not None:
            check_transfer_encoding(coding, is_old=is_old)
        length = read_length(headers.get("content-length", "0"))
        if length is None or length > self._limits.body_bytes:
            raise UnreadableError(413, self._too_large())
        expected = "" if is_old else headers.get("expect", "").lower()
        if expected not in ("", "100-continue"):
            raise UnreadableError(
                417, f"cannot meet 'Expect: {expected[:100]}'; send 100-continue or nothing"
            )
        return _Head(
            method=method,
            path=path_of(self._url, method),
            headers=headers,
            keep_alive=parser.should_keep_alive(),
            is_old=is_old,
            is_chunked=coding is not None,
            is_upgrade=parser.should_upgrade(),
            length=length,
            awaits_continue=bool(expected),
        )

    def _stay(self, rest: bytes) -> None:
        """Read a request that asks for another protocol as one that does not: its head once more, then on."""
        head, headers = self._last, dict(self._headers)
        headers.pop("upgrade", None)
        version = b" HTTP/1.0" if head.is_old else b" HTTP/1.1"
        lines = [head.method.encode() + b" " + self._url + version]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
        self._reset()
        self.stage, self.begun, self._parser = Stage.NOTHING, self.begun - 1, self._new_parser()
        self.feed(b"\r\n".join(lines) + END)
        self._head = self._last_head = b""  # nobody sent this head
        at = 0
        while at < len(rest):
            end = self.step(rest, at)
            self.feed(rest[at:end])
            at = end

    def _add(self) -> None:
        self.stage = Stage.NOTHING
        head = self._last
        request = HttpRequest(
            method=head.method,
            path=head.path,
            headers=head.headers,
            body=self._body,
            room=self._room,
            size_bytes=self._head_bytes + self.body_bytes,
            keep_alive=head.keep_alive,
            is_old=head.is_old,
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
        self._headers = {}
        self._body = b""
        self._room = self.rest = None
        self.body_bytes = self._head_bytes = self._unseen_bytes = 0
        self._body_left = self._parts = self._fields = 0


def _unreadable(error: httptools.HttpParserError, data: bytes | memoryview) -> UnreadableError:
    """Say why the parser stopped."""
    if isinstance(error.__context__, UnreadableError):
        return error.__context__
    is_other = isinstance(error, httptools.HttpParserInvalidMethodError) and _OTHER_METHOD.match(data)
    if is_other or "Invalid method for HTTP" in str(error):
        return _unknown_method()
    if "PRI" in str(error):
        return UnreadableError(505, "HTTP/2 is not spoken here; use HTTP/1.1")
    return UnreadableError(400, f"not HTTP/1.1: {error}")


def _unknown_method() -> UnreadableError:
    return UnreadableError(501, f"the method is unknown; use one of {', '.join(METHODS.values())}")
