"""HTTP requests and responses, without a socket: bytes become requests, pages and refusals become bytes.

`RequestReader` refuses what is wrong or too large as it arrives. It opens no socket and reads no clock.
llhttp parses; the reader keeps the parts, within the limits. A large body goes past the parser, straight into
memory that servers share.
"""

import re
import zlib
from collections import deque
from collections.abc import AsyncIterator
from email.utils import formatdate
from enum import Enum
from functools import lru_cache
from http.client import responses
from time import time
from urllib.parse import unquote_to_bytes

import httptools
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slimsched.serving.api.limits import (
    CODINGS,
    Limits,
    MethodNotAllowed,
    RefusalError,
    Unauthenticated,
    UnsupportedCoding,
    retry_of,
)
from slimsched.serving.live.memory import ALIGN_BYTES, LEAST_BYTES, InputArena

# -- What the head of a request must be beyond its grammar: its target, its Host, how its body is framed.

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")


class UnreadableError(Exception):
    """These bytes are not to be read any further; the status and the reason to send.

    `origin` is that of the web page that sent them, if they name one.
    """

    def __init__(self, status: int, why: str, origin: str = "") -> None:
        super().__init__(why)
        self.status, self.why, self.origin = status, why, origin


def path_of(target: bytes, method: str) -> str:
    """Return the path that a target names, decoded and without its query; `*` for the server as a whole."""
    if not target.startswith(b"/"):
        if target == b"*" and method == "OPTIONS":
            return "*"
        scheme, is_absolute, rest = target.partition(b"://")
        if not is_absolute or scheme.lower() not in (b"http", b"https"):
            raise UnreadableError(400, "the target is neither a path nor an http address; send a path")
        host, _, _ = rest.partition(b"?")
        host, slash, path = host.partition(b"/")
        check_host(host.decode("latin-1"))
        target = slash + path or b"/"
    path = target.partition(b"?")[0]
    if b"%" not in path:
        return path.decode("latin-1")
    if _ESCAPE.search(path):
        raise UnreadableError(400, "the path has a % without two hexadecimal digits; write % itself as %25")
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise UnreadableError(400, "the path is not UTF-8 once its escapes are decoded") from None
    if any(one < " " or one == "\x7f" for one in text):
        raise UnreadableError(400, "the path has escaped control characters; leave them out")
    return text


def check_host(host: str) -> None:
    """Refuse a Host that is not a name or an address with an optional port (RFC 9112, section 3.2)."""
    if _HOST.fullmatch(host) is None:
        raise UnreadableError(400, f"Host is '{host[:100]}'; send a name or an address, and a port if needed")


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
        self.give_back(self._room)
        self._reset()
        self.stage = Stage.NOTHING

    def give_back(self, room: memoryview | None) -> None:
        """Give back what a request took of the arena, once nobody needs its body."""
        if room is not None and self._arena is not None:
            self._arena.give_back(room)

    def close(self) -> None:
        """Forget every request that nobody has asked for."""
        self.drop()
        while self.complete:
            self.give_back(self.complete.popleft().room)

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
            if is_old:
                raise UnreadableError(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length")
            if coding.lower() != "chunked":  # RFC 9112, section 6.1
                why = f"Transfer-Encoding '{coding[:100]}' is not understood; send chunked, or Content-Length"
                raise UnreadableError(501, why)
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
        if length + shift < LEAST_BYTES:
            return
        self._room = self._arena.take(length + shift)
        if self._room is not None:
            self._body = self.rest = self._room[shift : shift + length]

    def _fill(self, data: bytes | memoryview) -> None:
        assert self.rest is not None
        self.rest[: len(data)] = data
        self.filled(len(data))

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


# -- Responses over HTTP: pages as JSON, and refusals with their status.

READ, POST, READ_OR_PUT = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "PUT")
READ_OR_POST = ("GET", "HEAD", "POST")
EVERY = ("GET", "HEAD", "POST", "PUT")

NO_CONTENT = 204
"""The status of an answer without a body; it has no length either."""


class HttpResponse(Struct, frozen=True, kw_only=True):
    """A response with a body, or with a stream that runs until it or the connection ends."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


@lru_cache(maxsize=1)
def date_field(second: int) -> str:
    """Return the header Date for a time in seconds since 1970, as a line with its end."""
    return f"date: {formatdate(second, usegmt=True)}\r\n"


def written(
    response: HttpResponse, *, keep_alive: bool = True, head_only: bool = False, is_old: bool = False
) -> bytes:
    """Return a response as bytes; only the head if it is a stream.

    A client of HTTP/1.0 (`is_old`) must be told that the connection stays open, others that it does not.
    """
    status = response.status
    head = f"HTTP/1.1 {status} {responses[status]}\r\n{date_field(int(time()))}"
    if status != NO_CONTENT:
        head += f"content-type: {response.content_type}\r\n"
        if response.stream is None:
            head += f"content-length: {len(response.body)}\r\n"
    for name, value in response.headers.items():
        head += f"{name}: {value}\r\n"
    if not keep_alive:
        head += "connection: close\r\n"
    elif is_old:
        head += "connection: keep-alive\r\n"
    whole = f"{head}\r\n".encode("latin-1")
    return whole if head_only else whole + response.body


def refused(status: int, why: str) -> HttpResponse:
    """Return an error in the protocol's JSON form."""
    return HttpResponse(status=status, body=msgspec.json.encode({"error": why}))


def response_of(refusal: RefusalError, curl: str = "") -> HttpResponse:
    """Return a refusal as a response, with a command that does better, if there is one."""
    headers = dict(retry_of(refusal))
    if isinstance(refusal, MethodNotAllowed):
        headers["allow"] = _allow(refusal.allowed)
    if isinstance(refusal, UnsupportedCoding):
        headers["accept-encoding"] = ", ".join(CODINGS)
    if isinstance(refusal, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": str(refusal)} | ({"curl": curl} if curl else {}))
    return HttpResponse(status=refusal.status, body=body, headers=headers)


def json_page(value: object) -> HttpResponse:
    """Return a page with any value as JSON."""
    return HttpResponse(status=200, body=msgspec.json.encode(value))


def require_method(request: HttpRequest, *methods: str) -> None:
    """Refuse other methods than these."""
    if request.method not in methods:
        refusal = MethodNotAllowed(f"{request.path} takes {' and '.join(methods)}, not {request.method}")
        refusal.allowed = methods
        raise refusal


def coding_of(request: HttpRequest) -> str:
    """Return how a request's body is compressed, nothing if it is not; refuse other ways than ours."""
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding == "identity" or not len(request.body):
        return ""
    if coding not in CODINGS:
        known = " or ".join(CODINGS)
        raise UnsupportedCoding(f"bodies in Content-Encoding '{coding[:100]}' are not accepted; use {known}")
    return coding


LEAST_PACKED_BYTES = 1024
"""Shorter answers are not worth it."""
_NEVER = re.compile(r"\s*q=0(\.0*)?\s*")


def packs(response: HttpResponse) -> bool:
    """Whether a response is worth compressing: text of some length. Raw tensors hardly shrink."""
    return len(response.body) >= LEAST_PACKED_BYTES and response.content_type != "application/octet-stream"


def packed(response: HttpResponse, accepted: str) -> HttpResponse:
    """Compress a response in a way that its client accepts, if there is one."""
    parts = [one.partition(";") for one in accepted.lower().split(",")]
    names = {name.strip() for name, _, weight in parts if not _NEVER.fullmatch(weight)}
    for coding in [one for one in CODINGS if one in names]:
        packer = zlib.compressobj(1, wbits=CODINGS[coding])
        body = packer.compress(response.body) + packer.flush()
        own = {"content-encoding": coding, "vary": "accept-encoding"}
        return replace(response, body=body, headers={**response.headers, **own})
    return response


def offer(path: str) -> HttpResponse:
    """Answer OPTIONS: say which methods a path takes. It depends on its form only, so it needs no token."""
    return HttpResponse(status=NO_CONTENT, headers={"allow": _allow(_methods_of(path))})


def _methods_of(path: str) -> tuple[str, ...]:
    match path.strip("/").split("/"):
        case ["*"]:
            return EVERY
        case ["v2", "goal"]:
            return READ_OR_PUT
        case ["v2", "models", _, "infer"] | ["v2", "models", _, "versions", _, "infer"]:
            return POST
        case ["v2", "repository", *_]:
            return POST
        case ["v2", "logging"] | ["v2", "trace", "setting"] | ["v2", "models", _, *_, "trace", "setting"]:
            return READ_OR_POST
        case ["v2", "systemsharedmemory" | "cudasharedmemory", *_, "register" | "unregister"]:
            return POST
        case _:
            return READ


def _allow(methods: tuple[str, ...]) -> str:
    return ", ".join((*methods, "OPTIONS"))
