"""Responses over HTTP: pages as JSON, and refusals with their status."""

import msgspec

from slimsched.serving.api.http_protocol import HttpResponse
from slimsched.serving.api.refusal import MethodNotAllowed, RefusalError, Unauthenticated
from slimsched.serving.api.request_reader import HttpRequest


def refused(status: int, why: str) -> HttpResponse:
    """Return an error in the protocol's JSON form."""
    return HttpResponse(status=status, body=msgspec.json.encode({"error": why}))


def response_of(refusal: RefusalError) -> HttpResponse:
    """Return a refusal as a response."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = f"{max(1, round(refusal.retry_after_s))}"
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
