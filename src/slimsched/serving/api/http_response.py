"""Responses over HTTP: pages as JSON, and refusals with their status."""

from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

from slimsched.serving.api.refusal import MethodNotAllowed, RefusalError, Unauthenticated, retry_of
from slimsched.serving.api.request_reader import HttpRequest

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


class HttpResponse(Struct, frozen=True, kw_only=True):
    """A response with a body, or with a stream that runs until it or the connection ends."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


def written(response: HttpResponse, *, keep_alive: bool = True, head_only: bool = False) -> bytes:
    """Return a response as bytes; only the head if it is a stream."""
    lines = [
        f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Error')}",
        f"content-type: {response.content_type}",
        *([] if response.stream is not None else [f"content-length: {len(response.body)}"]),
        *[f"{name}: {value}" for name, value in response.headers.items()],
    ]
    if not keep_alive:
        lines.append("connection: close")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if head_only else head + response.body


def refused(status: int, why: str) -> HttpResponse:
    """Return an error in the protocol's JSON form."""
    return HttpResponse(status=status, body=msgspec.json.encode({"error": why}))


def response_of(refusal: RefusalError) -> HttpResponse:
    """Return a refusal as a response."""
    headers = dict(retry_of(refusal))
    if isinstance(refusal, MethodNotAllowed):
        headers["allow"] = ", ".join(refusal.allowed)
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
