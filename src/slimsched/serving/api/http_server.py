"""The HTTP server: maps paths to handlers and refusals to statuses."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import monotonic
from urllib.parse import unquote

import msgspec

from slimsched.serving.api.connections import Connections
from slimsched.serving.api.goal_control import GoalControl
from slimsched.serving.api.http_message import read_call, write_answer
from slimsched.serving.api.http_protocol import HttpProtocol, HttpResponse
from slimsched.serving.api.json_body import read_body
from slimsched.serving.api.model_face import ModelFace
from slimsched.serving.api.refusal import (
    BadRequest,
    MethodNotAllowed,
    NotFound,
    RefusalError,
    Unauthenticated,
    Unavailable,
)
from slimsched.serving.api.repository import RepositoryControl, switched_off
from slimsched.serving.api.repository_request import RepositoryRequest
from slimsched.serving.api.request_reader import HttpRequest, read_length
from slimsched.serving.api.service import InferenceService
from slimsched.serving.api.token import Token

log = logging.getLogger("slim.http")

PageHandler = Callable[[], HttpResponse]

_repository_request = msgspec.json.Decoder(RepositoryRequest)

CLIENT_LEFT = "499"
"""The code that metrics count when a client left before its answer. It is never sent."""


class HttpServer:
    """Serves one InferenceService over HTTP.

    `pages` need the token, if there is one. `assets` do not: they hold no secrets.
    """

    def __init__(
        self,
        service: InferenceService,
        *,
        token: str = "",
        pages: dict[str, PageHandler] | None = None,
        goal: GoalControl | None = None,
        repository: RepositoryControl | None = None,
        assets: dict[str, PageHandler] | None = None,
    ) -> None:
        self._service, self._token = service, Token(token)
        self._pages, self._assets = pages or {}, assets or {}
        self._goal, self._repository = goal, repository
        self._connections = Connections(service.ledger)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Start to listen and return the port; port 0 picks a free one."""
        service = self._service  # its limits follow the models
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpProtocol(self.handle, self._refuse, self._connections, service.limits, service.arena),
            host,
            port,
            ssl=tls,
            backlog=1024,
        )
        self._connections.start()
        port = self._server.sockets[0].getsockname()[1]
        return int(port)

    async def stop(self) -> None:
        """Stop listening, answer the requests under way and close all connections, in a limited time."""
        if self._server is not None:
            self._server.close()
        await self._connections.stop(self._service.limits.drain_s)

    def abort(self) -> None:
        """Close all connections at once."""
        self._connections.abort()

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request and count the response."""
        began_s, kind = monotonic(), "infer" if request.path.endswith("/infer") else "other"
        try:
            response = await self._answer(request)
        except asyncio.CancelledError:
            self._service.tally.count_response("http", kind, CLIENT_LEFT, monotonic() - began_s)
            raise
        self._service.tally.count_response("http", kind, str(response.status), monotonic() - began_s)
        return response

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; turn every error into a response."""
        try:
            return await self._route(request)
        except RefusalError as refusal:
            return _response(refusal)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return refused(500, "an unexpected failure; the server's log has the details")

    async def _route(self, request: HttpRequest) -> HttpResponse:
        path = request.path.rstrip("/") or "/"
        if path in ("/v2/health/live", "/v2/health/ready"):
            _require_method(request, "GET", "HEAD")
            return self._health(path)
        page = self._assets.get(path)
        if page is None:
            self._authenticate(request)
            page = self._pages.get(path)
        if page is not None:
            _require_method(request, "GET", "HEAD")
            return page()
        parts = path.split("/")[1:]
        if parts[:1] != ["v2"]:
            raise NotFound(f"no path {request.path}; the protocol starts at /v2")
        if parts == ["v2"]:
            _require_method(request, "GET", "HEAD")
            return json_page(self._service.server_metadata())
        if parts == ["v2", "goal"] and self._goal is not None:
            _require_method(request, "GET", "HEAD", "PUT")
            return json_page(
                self._goal.change(bytes(request.body)) if request.method == "PUT" else self._goal.show()
            )
        if parts[1:2] == ["repository"]:
            return await self._ask_repository(request, parts[2:])
        if parts[1:2] == ["models"] and len(parts) >= 3:
            return await self._model(request, parts[2], parts[3:])
        raise NotFound(f"no path {request.path}; see /v2 and /v2/models/MODEL")

    async def _model(self, request: HttpRequest, name: str, rest: list[str]) -> HttpResponse:
        version = ""
        if rest[:1] == ["versions"] and len(rest) >= 2:
            version, rest = rest[1], rest[2:]
        face = self._service.face(name, version)
        if rest == ["infer"]:
            _require_method(request, "POST")
            return await self._infer(request, face)
        _require_method(request, "GET", "HEAD")
        if rest == []:
            return json_page(face.metadata())
        if rest == ["ready"]:
            if not self._service.is_ready:
                raise Unavailable(f"model '{name}' is not ready")
            return json_page({"name": name, "ready": True})
        raise NotFound(f"no path {request.path}; a model has /, /ready and /infer")

    async def _ask_repository(self, request: HttpRequest, parts: list[str]) -> HttpResponse:
        if parts != ["index"] and (parts[:1] != ["models"] or len(parts) != 3):
            raise NotFound(f"no path {request.path}; see /v2/repository/index")
        _require_method(request, "POST")
        if self._repository is None:
            raise switched_off()
        asked = read_body(_repository_request, request.body or b"{}", "a request to the repository")
        if parts == ["index"]:
            return json_page(self._repository.index(ready=asked.ready))
        _, name, step = parts
        if step == "load":
            await self._repository.load(unquote(name), asked.version())
        elif step == "unload":
            await self._repository.unload(unquote(name))
        else:
            raise NotFound(f"no path {request.path}; a model of the repository has /load and /unload")
        return json_page({})

    async def _infer(self, request: HttpRequest, face: ModelFace) -> HttpResponse:
        given = request.headers.get("inference-header-content-length")
        length = None if given is None else read_length(given)
        if given is not None and length is None:
            raise BadRequest(f"Inference-Header-Content-Length is '{given}'; give the JSON's length in bytes")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise BadRequest("compressed bodies are not accepted; send the body uncompressed")
        call = read_call(request.body, length, self._service.limits, face)
        answered = await self._service.infer(call)
        body, json_bytes = write_answer(call, answered)
        if json_bytes is None:
            return HttpResponse(status=200, body=body)
        headers = {"inference-header-content-length": str(json_bytes)}
        return HttpResponse(status=200, body=body, content_type="application/octet-stream", headers=headers)

    def _refuse(self, status: int, why: str) -> HttpResponse:
        """Refuse bytes that are not a request, or a connection above the limit."""
        self._service.tally.count_response("http", "other", str(status), 0.0)
        return _response(Unavailable(why)) if status == Unavailable.status else refused(status, why)

    def _health(self, path: str) -> HttpResponse:
        if path.endswith("ready"):
            return json_page(self._service.health())
        return json_page({"live": True})

    def _authenticate(self, request: HttpRequest) -> None:
        given = request.headers.get("authorization", "")
        if not self._token.is_in(given):
            raise Unauthenticated("a token is required; send the header Authorization: Bearer TOKEN")


def refused(status: int, why: str) -> HttpResponse:
    """Return an error in the protocol's JSON form."""
    return HttpResponse(status=status, body=msgspec.json.encode({"error": why}))


def _response(refusal: RefusalError) -> HttpResponse:
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


def _require_method(request: HttpRequest, *methods: str) -> None:
    if request.method not in methods:
        why = f"{request.path} takes {' and '.join(methods)}, not {request.method}"
        raise MethodNotAllowed(why, methods)
