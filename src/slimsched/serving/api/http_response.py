"""Responses over HTTP: pages as JSON, and refusals with their status."""

from collections.abc import AsyncIterator
from email.utils import formatdate
from time import time

import msgspec
from msgspec import Struct

from slimsched.serving.api.refusal import (
    MethodNotAllowed,
    RefusalError,
    Unauthenticated,
    UnsupportedCoding,
    retry_of,
)
from slimsched.serving.api.request_reader import HttpRequest

REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}
READ, POST, READ_OR_PUT = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "PUT")
EVERY = ("GET", "HEAD", "POST", "PUT")

_date = (0, "")
"""The second that was written last, and its text."""


NO_CONTENT = 204
"""The status of an answer without a body; it has no length either."""


class HttpResponse(Struct, frozen=True, kw_only=True):
    """A response with a body, or with a stream that runs until it or the connection ends."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


def date_field(now_s: float) -> str:
    """Return the header Date for a time in seconds since 1970, as a line with its end."""
    global _date
    second = int(now_s)
    if second != _date[0]:
        _date = second, f"date: {formatdate(second, usegmt=True)}\r\n"
    return _date[1]


def written(
    response: HttpResponse, *, keep_alive: bool = True, head_only: bool = False, is_old: bool = False
) -> bytes:
    """Return a response as bytes; only the head if it is a stream.

    A client of HTTP/1.0 (`is_old`) must be told that the connection stays open, others that it does not.
    """
    status = response.status
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\n{date_field(time())}"
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


def response_of(refusal: RefusalError) -> HttpResponse:
    """Return a refusal as a response."""
    headers = dict(retry_of(refusal))
    if isinstance(refusal, MethodNotAllowed):
        headers["allow"] = _allow(refusal.allowed)
    if isinstance(refusal, UnsupportedCoding):
        headers["accept-encoding"] = "identity"
    if isinstance(refusal, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": str(refusal)})
    return HttpResponse(status=refusal.status, body=body, headers=headers)


def json_page(value: object) -> HttpResponse:
    """Return a page with any value as JSON."""
    return HttpResponse(status=200, body=msgspec.json.encode(value))


def require_method(request: HttpRequest, *methods: str) -> None:
    """Refuse other methods than these."""
    if request.method not in methods:
        why = f"{request.path} takes {' and '.join(methods)}, not {request.method}"
        raise MethodNotAllowed(why, methods)


def require_identity(request: HttpRequest) -> None:
    """Refuse a body that is compressed."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity" and len(request.body):
        raise UnsupportedCoding(
            f"bodies in Content-Encoding '{coding[:100]}' are not accepted; send the body uncompressed"
        )


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
        case ["v2", "systemsharedmemory" | "cudasharedmemory", *_, "register" | "unregister"]:
            return POST
        case _:
            return READ


def _allow(methods: tuple[str, ...]) -> str:
    return ", ".join((*methods, "OPTIONS"))
