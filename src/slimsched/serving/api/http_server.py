"""The HTTP server: reads inference calls, passes other requests on, and turns refusals into statuses."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.connections import Connections
from slimsched.serving.api.cors import Cors
from slimsched.serving.api.desk import CLIENT_LEFT, Desk, ModelsChangedError
from slimsched.serving.api.express import Express, answer_of, is_available
from slimsched.serving.api.express_sockets import listen
from slimsched.serving.api.http_message import read_call
from slimsched.serving.api.http_protocol import HttpProtocol
from slimsched.serving.api.http_response import (
    HttpResponse,
    offer,
    refused,
    require_identity,
    require_method,
    response_of,
)
from slimsched.serving.api.lent_connection import LentConnection
from slimsched.serving.api.refusal import BadRequest, RefusalError, Unavailable
from slimsched.serving.api.request_reader import HttpRequest, read_length
from slimsched.serving.api.request_target import UnreadableError
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.token import Token

log = logging.getLogger("slim.http")

Others = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Answers inference calls at a desk; `others` answers every other request, and may raise refusals."""

    def __init__(
        self,
        desk: Desk,
        others: Others,
        *,
        token: str = "",
        cors: Cors | None = None,
        link: BundleLink | None = None,
    ) -> None:
        """Requests whose heads are known go over the link, in bundles, where that is possible."""
        self._desk, self._others, self._token, self._link = desk, others, Token(token), link
        self._cors = cors
        self._connections = Connections(desk.ledger)
        self._server: asyncio.Server | None = None
        self._express: Express | None = None

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, shares_port: bool = False
    ) -> int:
        """Start to listen and return the port; port 0 picks a free one. Other processes may share it."""
        if self._link is not None and tls is None and is_available:
            sockets = listen(host, port, shares_port=shares_port)
            self._express = Express(self._desk, self._link, self._connect, self.handle, sockets)
            self._connections.start()
            return int(sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connect, host, port, ssl=tls, backlog=1024, reuse_port=shares_port or None
        )
        self._connections.start()
        port = self._server.sockets[0].getsockname()[1]
        return int(port)

    async def start_unix(self, path: Path) -> None:
        """Start to listen at a Unix socket, for processes of this server."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connect, str(path), backlog=1024)
        self._connections.start()

    async def stop(self) -> None:
        """Stop listening, answer the requests under way and close all connections, in a limited time."""
        if self._server is not None:
            self._server.close()
        if self._express is not None:
            began_s, within_s = monotonic(), self._desk.limits.drain_s
            await self._express.stop(within_s)
            await self._connections.stop(max(0.0, began_s + within_s - monotonic()))
            self._express.abort()
            return
        await self._connections.stop(self._desk.limits.drain_s)

    def abort(self) -> None:
        """Close all connections at once."""
        if self._express is not None:
            self._express.abort()
        self._connections.abort()

    def models_changed(self) -> None:
        """Read heads anew: they may mean something else now."""
        if self._express is not None:
            self._express.forget()

    def _connect(self, lent: LentConnection | None = None) -> HttpProtocol:
        desk = self._desk  # its limits follow the models
        return HttpProtocol(self.handle, self._refuse, self._connections, desk.limits, desk.arena, lent)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; turn every error into a response. Count the answers of this desk."""
        began_s, code, is_question = monotonic(), CLIENT_LEFT, request.method == "OPTIONS"
        is_call = not is_question and request.path.rstrip("/").endswith("/infer")
        try:
            response = self._offer(request) if is_question else await self._answer(request, is_call)
            code = str(response.status)
            if self._cors is not None:
                response = self._cors.shown(request.headers.get("origin", ""), response)
            return response
        finally:
            if is_call or is_question or not self._desk.passes_on:
                kind = "infer" if is_call else "other"
                self._desk.tally.count_response("http", kind, code, monotonic() - began_s)

    def _offer(self, request: HttpRequest) -> HttpResponse:
        """Say what may be asked at a path; a browser asks whether a page may."""
        preflight = None if self._cors is None else self._cors.preflight(request)
        return offer(request.path) if preflight is None else preflight

    async def _answer(self, request: HttpRequest, is_call: bool) -> HttpResponse:
        try:
            if is_call and (model := _model_of(request.path)) is not None:
                self._token.check(request.headers.get("authorization", ""))
                self._desk.face(*model)
                require_method(request, "POST")
                return await self._infer(request, *model)
            require_identity(request)
            return await self._others(request)
        except RefusalError as refusal:
            return response_of(refusal)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return refused(500, "an unexpected failure; the server's log has the details")

    async def _infer(self, request: HttpRequest, name: str, version: str) -> HttpResponse:
        given = request.headers.get("inference-header-content-length")
        length = None if given is None else read_length(given)
        if given is not None and length is None:
            raise BadRequest(f"Inference-Header-Content-Length is '{given}'; give the JSON's length in bytes")
        require_identity(request)
        desk = self._desk
        learns = self._express is not None and not (self._cors is not None and "origin" in request.headers)
        while True:
            with Loan(desk) as loan:
                call = read_call(request.body, length, desk.limits, desk.face(name, version), loan)
                if learns and self._express is not None:
                    self._express.learn(request, call, length)
                try:
                    answered = await desk.infer(call)
                    break
                except (
                    ModelsChangedError
                ):  # the model was replaced meanwhile: read the call again for the new one
                    continue
        return answer_of(call, answered)

    def _refuse(self, failure: UnreadableError) -> HttpResponse:
        """Refuse bytes that are not a request, or a connection above the limit."""
        status, why = failure.status, failure.why
        self._desk.tally.count_response("http", "other", str(status), 0.0)
        response = response_of(Unavailable(why)) if status == Unavailable.status else refused(status, why)
        return response if self._cors is None else self._cors.shown(failure.origin, response)


def _model_of(path: str) -> tuple[str, str] | None:
    """Return the model and version that a path asks to run; None if it is not of this kind."""
    match path.strip("/").split("/"):
        case ["v2", "models", name, "infer"]:
            return name, ""
        case ["v2", "models", name, "versions", version, "infer"]:
            return name, version
        case _:
            return None
