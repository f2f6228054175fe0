"""The HTTP server: reads inference calls, passes other requests on, and turns refusals into statuses.

Calls are Open Inference Protocol v2: JSON, optionally followed by raw tensors. Those whose heads are known
are read by the compiled line.
"""

import asyncio
import logging
import os
import re
import shlex
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError, SlimError
from slimsched.serving.api.calls import (
    AnswerForm,
    Call,
    CallHead,
    GivenInput,
    InferenceResult,
    Layout,
    Loan,
    ModelApi,
    OutputSpan,
    Parameter,
    RequestedOutput,
    check_head,
    is_plain_call,
    pack,
    read_bytes,
    read_json,
    read_parameters,
    read_shared,
)
from slimsched.serving.api.express.line import ExpressLine, listen
from slimsched.serving.api.fronts.bundles import CallBatcher
from slimsched.serving.api.http_connection import Connections, Handler, HttpProtocol, LentConnection
from slimsched.serving.api.http_requests import (
    HttpRequest,
    HttpResponse,
    RequestReader,
    UnreadableError,
    coding_of,
    offer,
    packed,
    packs,
    read_length,
    refused,
    require_method,
    response_of,
    written,
)
from slimsched.serving.api.limits import (
    BadRequest,
    Limits,
    RefusalError,
    Token,
    TooMany,
    Unavailable,
    read_body,
    unpacked,
)
from slimsched.serving.api.service import CLIENT_LEFT, CallHandler, run_call
from slimsched.serving.api.shared_memory import RegionPart, RegionSpan, Size, filled, write_parts

if TYPE_CHECKING:
    from slimsched.serving.api.express._compiled_line import HttpNotice

# -- The server's side of Open Inference Protocol v2 over HTTP: JSON, optionally followed by raw tensors.

Length = Annotated[int, Meta(ge=-1, le=2**40)]  # -1 gets an answer that says what to send


class _InputParameters(RegionSpan, frozen=True, kw_only=True, omit_defaults=True):
    binary_data_size: Size | None = None


class _Input(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    shape: Annotated[list[Length], Meta(max_length=32)]
    datatype: str
    parameters: _InputParameters = _InputParameters()
    data: msgspec.Raw = msgspec.Raw(b"")


class _OutputParameters(OutputSpan, frozen=True, kw_only=True):
    binary_data: bool | None = None


class _Output(Struct, frozen=True, kw_only=True):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Infer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Parameter] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Infer)
_encoder = msgspec.json.Encoder()

CACHED_HEAD_BYTES = 1024
"""A JSON head up to this length is parsed once and cached: a client sends the same head again and again."""
SHARED_INPUT = b'"shared_memory_region"'


NETWORK, REQUEST = "\0network", "\0request"
_MARKS = [b'"\\u0000network"', b'"\\u0000request"']
"""What stands for two numbers of an answer until they are known."""


def read_call(
    body: bytes | bytearray | memoryview,
    json_bytes: int | None,
    limits: Limits,
    api: ModelApi,
    loan: Loan,
) -> Call:
    """Read the call from a request body; `json_bytes` is the length of its JSON if raw tensors follow."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes; "
            "give the JSON's length"
        )
    end = len(body) if json_bytes is None else json_bytes
    if end > CACHED_HEAD_BYTES:
        head = _read_head(body[:end], api, limits.most)
    else:
        text = bytes(body[:end])
        is_cached = json_bytes is not None or SHARED_INPUT in text  # else it holds the data itself
        head = (_read_head_cached if is_cached else _read_head)(text, api, limits.most)
    return head.call(api, _read_tensors(api, head, memoryview(body)[end:], loan), loan)


def _read_tensors(api: ModelApi, head: CallHead, raw: memoryview, loan: Loan) -> tuple[memoryview, ...]:
    """Read every input, in the model's order; raw ones follow the JSON in the order it names them."""
    tensors: dict[str, memoryview] = {}
    at = 0
    for one in head.inputs:
        tensor = api.inputs[one.name]
        if one.place is not None:
            values = read_shared(tensor, one.place, one.datatype, one.shape, loan)
        elif one.size is not None:
            if one.size > len(raw) - at:
                raise BadRequest(
                    f"input '{one.name}': binary_data_size is {one.size}, but {len(raw) - at} bytes follow "
                    "the JSON"
                )
            values = read_bytes(tensor, raw[at : at + one.size], one.datatype, one.shape)
            at += one.size
        elif not one.data:
            raise BadRequest(f"input '{one.name}' has neither data nor binary_data_size; give one of them")
        else:
            values = read_json(tensor, one.data, one.datatype, one.shape)
        tensors[one.name] = values.data.cast("B")
    if at != len(raw):
        raise BadRequest(f"{len(raw)} bytes follow the JSON, but its inputs take {at}")
    return tuple([tensors[name] for name in api.inputs])


def raw_layout(text: bytes, limits: Limits, api: ModelApi) -> Layout | None:
    """Return where a request's tensors lie behind its JSON; None if their bytes are not what the model takes.

    The request was read before, so the JSON is right.
    """
    head = _read_head_cached(text, api, limits.most)
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for one in head.inputs:
        if one.size is None or not one.is_plain(api):
            return None
        places[one.name] = at, one.size
        at += one.size
    return [places[name] for name in api.inputs]


def _read_head(text: bytes | bytearray | memoryview, api: ModelApi, most: tuple[int, int]) -> CallHead:
    """Parse and check the JSON of a request, within the most examples and the largest answer."""
    message = read_body(_decoder, text, "an inference request")
    parameters = read_parameters(message.parameters)
    all_binary = parameters.binary_data_output
    requested = [
        RequestedOutput(
            name=one.name,
            binary=all_binary if one.parameters.binary_data is None else one.parameters.binary_data,
            place=one.parameters.place,
            best=one.parameters.classification,
        )
        for one in message.outputs
    ]
    inputs = [_described(one) for one in message.inputs]
    return check_head(api, most, message.id, inputs, requested, parameters, binary=all_binary)


def _described(one: _Input) -> GivenInput:
    place, size = one.parameters.place, one.parameters.binary_data_size
    if place is not None and (size is not None or one.data):
        raise BadRequest(f"input '{one.name}' names shared memory and has data; give one of them")
    return GivenInput(
        name=one.name,
        datatype=one.datatype,
        shape=tuple(one.shape),
        size=size,
        data=bytes(one.data),
        place=place,
    )


_read_head_cached = lru_cache(maxsize=256)(_read_head)


def write_answer(call: Call, answered: InferenceResult) -> HttpResponse:
    """Return the response; raw tensors follow its JSON."""
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    shared: list[tuple[RegionPart, bytes]] = []
    for one in call.outputs:
        kind, shape, values = call.api.tensor(one, answered.outputs)
        entry: dict[str, Any] = {"name": one.name, "datatype": kind, "shape": shape}
        if one.place is not None:
            part, packed = call.parts[one.name], pack(values)
            part.check(f"output '{one.name}'", len(packed))
            shared.append((part, packed))
            entry["parameters"] = filled(one.place, len(packed)) | {
                "binary_data_size": 0
            }  # for perf_analyzer
        elif one.binary:
            packed = pack(values)
            entry["parameters"] = {"binary_data_size": len(packed)}
            raw.append(packed)
        else:
            entry["data"] = values if isinstance(values, list) else values.reshape(-1).tolist()
        outputs.append(entry)
    head = _encode(call, answered.parameters, outputs)
    if shared:
        write_parts(shared)
    if not raw:
        return HttpResponse(status=200, body=head)
    headers = {"inference-header-content-length": str(len(head))}
    body = b"".join([head, *raw])
    return HttpResponse(status=200, body=body, content_type="application/octet-stream", headers=headers)


def write_around(
    call: Call, parameters: dict[str, Parameter], shapes: Sequence[tuple[int, ...]]
) -> tuple[bytes, bytes, bytes]:
    """Return the JSON of an answer around its network time and its request's number.

    Its outputs all follow as raw tensors of these shapes.
    """
    outputs: list[dict[str, Any]] = []
    for one, shape in zip(call.outputs, shapes, strict=True):
        size = call.count * call.api.row_bytes(one.name, as_text=False)
        kind = call.api.datatype(one.name)
        entry = {"name": one.name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}
        outputs.append(entry)
    text = _encode(call, parameters | {"network_ms": NETWORK, "request": REQUEST}, outputs)
    before, _, rest = text.partition(_MARKS[0])
    between, _, after = rest.partition(_MARKS[1])
    return before, between, after


def _encode(call: Call, parameters: dict[str, Parameter], outputs: list[dict[str, Any]]) -> bytes:
    message = {
        "model_name": call.api.name,
        "model_version": call.api.version,
        "id": call.id,
        "parameters": parameters,
        "outputs": outputs,
    }
    return _encoder.encode(message)


# -- The express line of HTTP: requests with known heads are read without Python.
#
# What the thread does not know it lends, with the connection, to the protocol in Python. If that request is a
# plain inference call, the thread learns its head and gets the connection back. Where the compiled part is
# missing, with TLS, and with SLIM_PURE=1 in the environment, Python serves every connection.

try:
    from slimsched.serving.api.express import _express
except ImportError:  # not compiled here
    is_available = False
else:
    is_available = not os.environ.get("SLIM_PURE")

LARGEST_BYTES = 128 * 2**10
"""The largest request that is worth it: larger ones are received straight where servers read them."""

UNUSUAL = ("transfer-encoding", "expect", "upgrade")
"""A head with one of these headers is read each time."""


class Express(ExpressLine["HttpNotice"]):
    """The line of HTTP: lends connections to the protocol, and gets them back."""

    protocol, form = "http", AnswerForm(write_around, lambda _: b"")
    fine, left, too_many = "200", CLIENT_LEFT, str(TooMany.status)

    def __init__(
        self,
        handler: CallHandler,
        link: CallBatcher,
        connect: Callable[[LentConnection], HttpProtocol],
        handle: Handler,
        sockets: Sequence[socket.socket],
    ) -> None:
        self._connect, self._handle = connect, handle
        self._native = _express.Express([one.fileno() for one in sockets])
        super().__init__(self._native, handler, link, sockets)

    # -- heads

    def forget(self) -> None:
        """Forget all heads: models or limits have changed."""
        super().forget()
        limits = self._handler.limits
        of_address = f"{limits.connections_per_address} connections are open from this address"
        for why, text in ((1, f"{limits.connections} connections are open"), (2, of_address)):
            refusal = response_of(Unavailable(f"{text}, which is the limit; try again"))
            self._native.tell("full", why, written(refusal, keep_alive=False))

    def learn(self, request: HttpRequest, call: Call, json_bytes: int | None) -> None:
        """Learn the head of a request that was read, if it can be known."""
        if json_bytes is None or not is_plain(request, call):
            return
        text = bytes(request.body[:json_bytes])
        layout = raw_layout(text, self._handler.limits, call.api)
        if layout is not None:
            self._learn(request.head, text, call, layout, len(request.body), [])

    def knows(self, request: HttpRequest) -> bool:
        """Whether the thread would understand this request."""
        json_bytes = read_length(request.headers.get("inference-header-content-length", ""))
        return json_bytes is not None and (request.head, bytes(request.body[:json_bytes])) in self._heads

    # -- answers

    def _written(self, call: Call, answered: InferenceResult) -> bytes:
        return written(write_answer(call, answered))

    def _refused(self, error: SlimError) -> tuple[bytes, str]:
        response = response_of(error) if isinstance(error, RefusalError) else refused(500, str(error))
        return written(response), str(response.status)

    async def _read(self, token: int, data: bytes) -> None:
        """Answer a request as the protocol does."""
        reader = RequestReader(self._handler.limits)
        at = 0
        while at < len(data):
            end = reader.step(data, at)
            reader.feed(data[at:end])
            at = end
        response = await self._handle(reader.complete.popleft())
        self._native.answer([token], written(response))

    # -- connections

    def _take_notice(self, notice: "HttpNotice") -> None:
        self._spawn(self._lend(*notice))

    async def _lend(self, file: int, arrived: bytes, unsent: bytes, address: str) -> None:
        """Let the protocol serve a connection."""
        lent = LentConnection(self, address, arrived, unsent)
        try:
            connection = socket.socket(fileno=file)
            await self._loop.connect_accepted_socket(lambda: self._connect(lent), connection)
        except OSError:  # the client has left meanwhile
            self.lost(lent)

    def returned(self, lent: LentConnection, file: int) -> None:
        """Take a connection back: the thread understands what its client sends."""
        lent.is_over = True
        self._native.tell("adopt", file, lent.address.encode())

    def lost(self, lent: LentConnection) -> None:
        """A connection that was lent is closed."""
        if not lent.is_over:
            lent.is_over = True
            self._native.tell("gone", 0, lent.address.encode())


def is_plain(request: HttpRequest, call: Call) -> bool:
    """Whether the head of this request can be known: nothing of it depends on more than its bytes."""
    return (
        bool(request.head)
        and request.keep_alive
        and not request.is_old
        and len(request.head) + len(request.body) <= LARGEST_BYTES
        and request.headers.get("connection", "keep-alive").lower() == "keep-alive"
        and not any(name in request.headers for name in UNUSUAL)
        and is_plain_call(call)
    )


# -- Which web pages may use this server from a browser: CORS, as the Fetch standard describes it.
#
# A browser asks first, with OPTIONS, whether a page of another origin may send a request. Then it shows the
# page the answers that name its origin. Without `slim serve --cors`, no page is let in.

ANY = "*"
KEPT_S = 600
"""How long a browser need not ask again."""
USUAL = "authorization, content-type, inference-header-content-length"
SHOWN = "inference-header-content-length, retry-after, www-authenticate"
"""Headers of answers that pages may read besides those that they always may."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(:[0-9]{1,5})?")
_FIELD_NAMES = re.compile(r"[!#-'*+.^_`|~0-9A-Za-z-]+( *, *[!#-'*+.^_`|~0-9A-Za-z-]+)*")


class Cors:
    """The origins whose pages may use this server; `*` stands for all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(map(_checked, origins))
        self._is_open = ANY in self._origins

    def preflight(self, request: HttpRequest) -> HttpResponse | None:
        """Answer the question of a browser; None if this request is not one. It needs no token."""
        headers = request.headers
        if "origin" not in headers or "access-control-request-method" not in headers:
            return None
        response = offer(request.path)
        if not self._lets_in(headers["origin"]):
            return response
        asked = headers.get("access-control-request-headers", "")
        allowed = {
            "access-control-allow-methods": response.headers["allow"],
            "access-control-allow-headers": asked if _FIELD_NAMES.fullmatch(asked) else USUAL,
            "access-control-max-age": str(KEPT_S),
        }
        return replace(response, headers={**response.headers, **allowed})

    def shown(self, origin: str, response: HttpResponse) -> HttpResponse:
        """Let pages of this origin read a response, if they may."""
        headers = dict(response.headers)
        if not self._is_open:
            vary = headers.get("vary")
            headers["vary"] = (
                f"{vary}, Origin" if vary else "Origin"
            )  # other origins get another answer, so caches must not mix them
        if origin and self._lets_in(origin):
            headers["access-control-allow-origin"] = ANY if self._is_open else origin
            headers["access-control-expose-headers"] = SHOWN
        return replace(response, headers=headers)

    def _lets_in(self, origin: str) -> bool:
        return self._is_open or origin in self._origins


def _checked(origin: str) -> str:
    text = origin.lower().removesuffix("/")
    if text != ANY and _ORIGIN.fullmatch(text) is None:
        raise ConfigError(f"--cors '{origin}' is not an origin; write it as https://example.org:8443, or *")
    return text


def read_cors(origins: Sequence[str]) -> Cors | None:
    """Return who may use the server from a browser; None if no origin is given."""
    return Cors(origins) if origins else None


log = logging.getLogger("slim.http")

_PLAIN_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?")
UNPACKED_AT_ONCE = 2
"""How many bodies are unpacked at the same time, each into as much memory as a body may take."""

Others = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Hands inference calls to a handler; `others` answers every other request, and may raise refusals."""

    def __init__(
        self,
        handler: CallHandler,
        others: Others,
        *,
        link: CallBatcher,
        token: str = "",
        cors: Cors | None = None,
    ) -> None:
        """Calls whose heads are known go over the link, in bundles, where that is possible."""
        self._handler, self._others, self._token, self._link = handler, others, Token(token), link
        self._cors = cors
        self._connections = Connections(handler.ledger)
        self._unpacking, self._unpacked = asyncio.Semaphore(UNPACKED_AT_ONCE), handler.ledger.open("unpacked")
        self._server: asyncio.Server | None = None
        self._express: Express | None = None

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, shares_port: bool = False
    ) -> int:
        """Start to listen and return the port; port 0 picks a free one. Other processes may share it."""
        sockets: Sequence[Any]
        if tls is None and is_available:
            sockets = listen(host, port, shares_port=shares_port)
            self._express = Express(self._handler, self._link, self._connect, self.handle, sockets)
        else:
            self._server = await asyncio.get_running_loop().create_server(
                self._connect, host, port, ssl=tls, backlog=1024, reuse_port=shares_port or None
            )
            sockets = self._server.sockets
        self._connections.start()
        return int(sockets[0].getsockname()[1])

    async def start_unix(self, path: Path) -> None:
        """Start to listen at a Unix socket, for processes of this server."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connect, str(path), backlog=1024)
        self._connections.start()

    async def stop(self) -> None:
        """Stop listening, answer the requests under way and close all connections, in a limited time."""
        if self._server is not None:
            self._server.close()
        until_s = monotonic() + self._handler.limits.drain_s
        if self._express is not None:
            await self._express.stop(self._handler.limits.drain_s)
        await self._connections.stop(max(0.0, until_s - monotonic()))
        if self._express is not None:
            self._express.abort()

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
        handler = self._handler  # its limits follow the models
        return HttpProtocol(self.handle, self._refuse, self._connections, handler.limits, handler.arena, lent)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; turn every error into a response. Count the answers of this handler."""
        began_s, code, is_question = monotonic(), CLIENT_LEFT, request.method == "OPTIONS"
        is_call = not is_question and request.path.rstrip("/").endswith("/infer")
        try:
            response = None if self._cors is None or not is_question else self._cors.preflight(request)
            if response is None:
                response = offer(request.path) if is_question else await self._answer(request, is_call)
            code = str(response.status)
            if (accepted := request.headers.get("accept-encoding")) and packs(response):
                response = await asyncio.to_thread(packed, response, accepted)
            if self._cors is not None:
                response = self._cors.shown(request.headers.get("origin", ""), response)
            return response
        finally:
            if is_call or is_question or not self._handler.passes_on:
                kind = "infer" if is_call else "other"
                self._handler.tally.count_response("http", kind, code, monotonic() - began_s)

    async def _answer(self, request: HttpRequest, is_call: bool) -> HttpResponse:
        try:
            if "content-encoding" in request.headers and (coding := coding_of(request)):
                return await self._answer_packed(request, coding, is_call)
            if is_call and (model := _model_of(request.path)) is not None:
                self._token.check(request.headers.get("authorization", ""))
                self._handler.api(*model)
                require_method(request, "POST")
                return await self._infer(request, *model)
            return await self._others(request)
        except BadRequest as refusal:
            return response_of(refusal, curl=self._curl(request))
        except RefusalError as refusal:
            return response_of(refusal)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return refused(500, "an unexpected failure; the server's log has the details")

    async def _answer_packed(self, request: HttpRequest, coding: str, is_call: bool) -> HttpResponse:
        """Answer a request whose body is compressed; few are unpacked at a time, and count from then on."""
        self._token.check(request.headers.get("authorization", ""))
        limits, ledger = self._handler.limits, self._handler.ledger
        async with self._unpacking:
            body = await asyncio.to_thread(unpacked, request.body, coding, limits.body_bytes)
        if 2 * (self._unpacked.held_bytes + len(body)) > limits.held_bytes:
            raise Unavailable("too many bytes of requests are under way; try again")
        headers = {name: value for name, value in request.headers.items() if name != "content-encoding"}
        ledger.hold(self._unpacked, len(body))
        try:
            return await self._answer(replace(request, body=body, headers=headers, head=b""), is_call)
        finally:
            ledger.hold(self._unpacked, -len(body))

    async def _infer(self, request: HttpRequest, name: str, version: str) -> HttpResponse:
        given = request.headers.get("inference-header-content-length")
        length = None if given is None else read_length(given)
        if given is not None and length is None:
            raise BadRequest(f"Inference-Header-Content-Length is '{given}'; give the JSON's length in bytes")
        learns = self._express is not None and not (self._cors is not None and "origin" in request.headers)

        def read(handler: CallHandler, loan: Loan) -> Call:
            call = read_call(request.body, length, handler.limits, handler.api(name, version), loan)
            if learns and self._express is not None:
                self._express.learn(request, call, length)
            return call

        return write_answer(*await run_call(self._handler, read))

    def _curl(self, request: HttpRequest) -> str:
        """Return a line for the shell that asks the same model about an example of zeros."""
        model = _model_of(request.path)
        if model is None or (api := self._handler.apis.get(model[0])) is None:
            return ""
        inputs = [
            _Input(
                name=one.name,
                shape=[1, *one.shape],
                datatype=one.datatype,
                parameters=_InputParameters(binary_data_size=one.row_bytes),
            )
            for one in api.spec.inputs
        ]
        head, host = _encoder.encode(_Infer(inputs=inputs)).decode(), request.headers.get("host", "")
        where = host if _PLAIN_HOST.fullmatch(host) else "localhost:8000"
        token = ' -H "Authorization: Bearer $SLIM_TOKEN"' if "authorization" in request.headers else ""
        return (
            f"(printf %s {shlex.quote(head)}; head -c {api.spec.row_bytes} /dev/zero) | curl{token} "
            f"-H Inference-Header-Content-Length:{len(head.encode())} --data-binary @- "
            f"{where}{quote(f'/v2/models/{api.name}/infer')}"
        )

    def _refuse(self, failure: UnreadableError) -> HttpResponse:
        """Refuse bytes that are not a request, or a connection above the limit."""
        status, why = failure.status, failure.why
        self._handler.tally.count_response("http", "other", str(status), 0.0)
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
