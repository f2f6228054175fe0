"""The HTTP server: reads inference calls, passes other requests on, and turns refusals into statuses.

Calls are Open Inference Protocol v2: JSON, optionally followed by raw tensors. Heads that are known go
express.
"""

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError, SlimError
from slimsched.serving.api.calls import (
    AnswerForm,
    Call,
    CallHead,
    InferenceResult,
    Layout,
    ModelFace,
    Parameter,
    RequestedOutput,
    check_answer,
    check_id,
    check_inputs,
    check_outputs,
    check_tensor,
    is_plain_call,
    pack,
    read_bytes,
    read_json,
    read_parameters,
    read_shared,
    read_terms,
)
from slimsched.serving.api.express.line import ExpressLine, listen
from slimsched.serving.api.fronts.bundles import BundleLink
from slimsched.serving.api.http_connection import Connections, Handler, HttpProtocol, LentConnection
from slimsched.serving.api.http_requests import (
    HttpRequest,
    HttpResponse,
    RequestReader,
    UnreadableError,
    offer,
    read_length,
    refused,
    require_identity,
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
)
from slimsched.serving.api.service import CLIENT_LEFT, Desk, ModelsChangedError
from slimsched.serving.api.shared_memory import Loan, Place, RegionPart, Size, filled, write_parts

if TYPE_CHECKING:
    from slimsched.serving.api.express._compiled_line import Notice

# -- The server's side of Open Inference Protocol v2 over HTTP: JSON, optionally followed by raw tensors.

Length = Annotated[int, Meta(ge=-1, le=2**40)]  # -1 gets an answer that says what to send


class _InputParameters(Place, frozen=True, kw_only=True):
    binary_data_size: Size | None = None


class _Input(Struct, frozen=True, kw_only=True):
    name: str
    shape: Annotated[list[Length], Meta(max_length=32)]
    datatype: str
    parameters: _InputParameters = _InputParameters()
    data: msgspec.Raw = msgspec.Raw(b"")


class _OutputParameters(Place, frozen=True, kw_only=True):
    binary_data: bool | None = None


class _Output(Struct, frozen=True, kw_only=True):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Infer(Struct, frozen=True, kw_only=True):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Parameter] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Infer)
_encoder = msgspec.json.Encoder()

CACHED_HEAD_BYTES = 1024
"""A JSON head up to this length is parsed once and cached: a client sends the same head again and again."""
SHARED_INPUT = b'"shared_memory_region"'


class _Tensor(Struct, frozen=True, kw_only=True):
    """An input as the JSON describes it; `size` is its length in bytes if it follows the JSON.

    With a `place` it lies in shared memory.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: bytes
    place: Place | None


_Head = CallHead[_Tensor]

NETWORK, REQUEST = "\0network", "\0request"
_MARKS = [b'"\\u0000network"', b'"\\u0000request"']
"""What stands for two numbers of an answer until they are known."""


def read_call(
    body: bytes | bytearray | memoryview,
    json_bytes: int | None,
    limits: Limits,
    face: ModelFace,
    loan: Loan,
) -> Call:
    """Read the call from a request body; `json_bytes` is the length of its JSON if raw tensors follow."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes; "
            "give the JSON's length"
        )
    most = limits.examples_per_request, limits.answer_bytes
    end = len(body) if json_bytes is None else json_bytes
    if end > CACHED_HEAD_BYTES:
        head = _read_head(body[:end], face, most)
    else:
        text = bytes(body[:end])
        is_cached = json_bytes is not None or SHARED_INPUT in text  # else it holds the data itself
        head = (_read_head_cached if is_cached else _read_head)(text, face, most)
    return head.call(face, _read_tensors(face, head, memoryview(body)[end:], loan), loan)


def _read_tensors(face: ModelFace, head: _Head, raw: memoryview, loan: Loan) -> tuple[memoryview, ...]:
    """Read every input, in the model's order; raw ones follow the JSON in the order it names them."""
    tensors: dict[str, memoryview] = {}
    at = 0
    for one in head.inputs:
        tensor = face.inputs[one.name]
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
    return tuple([tensors[name] for name in face.inputs])


def raw_layout(text: bytes, limits: Limits, face: ModelFace) -> Layout | None:
    """Return where a request's tensors lie behind its JSON; None if their bytes are not what the model takes.

    The request was read before, so the JSON is right.
    """
    head = _read_head_cached(text, face, (limits.examples_per_request, limits.answer_bytes))
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for one in head.inputs:
        kind = face.inputs[one.name].datatype
        if one.size is None or one.place is not None or one.datatype != kind or kind in ("BOOL", "BYTES"):
            return None
        places[one.name] = at, one.size
        at += one.size
    return [places[name] for name in face.inputs]


def _read_head(text: bytes | bytearray | memoryview, face: ModelFace, most: tuple[int, int]) -> _Head:
    """Parse and check the JSON of a request, within the most examples and the largest answer."""
    message = read_body(_decoder, text, "an inference request")
    parameters = read_parameters(message.parameters)
    check_id(message.id)
    check_inputs(face, [one.name for one in message.inputs])
    counts = {
        check_tensor(face.inputs[one.name], one.datatype, tuple(one.shape), most[0]) for one in message.inputs
    }
    if len(counts) > 1:
        raise BadRequest(f"inputs have {sorted(counts)} rows; give all the same number")
    all_binary = parameters.binary_data_output
    requested = [
        RequestedOutput(
            name=o.name,
            binary=all_binary if o.parameters.binary_data is None else o.parameters.binary_data,
            place=_place(o.parameters),
        )
        for o in message.outputs
    ]
    outputs, count = check_outputs(face, requested, binary=all_binary), counts.pop()
    check_answer(face, outputs, count, most[1])
    return _Head(
        id=message.id,
        count=count,
        inputs=tuple(map(_described, message.inputs)),
        terms=read_terms(face, parameters),
        outputs=outputs,
    )


def _described(one: _Input) -> _Tensor:
    place, size = _place(one.parameters), one.parameters.binary_data_size
    if place is not None and (size is not None or one.data):
        raise BadRequest(f"input '{one.name}' names shared memory and has data; give one of them")
    return _Tensor(
        name=one.name,
        datatype=one.datatype,
        shape=tuple(one.shape),
        size=size,
        data=bytes(one.data),
        place=place,
    )


def _place(parameters: Place) -> Place | None:
    return parameters if parameters.shared_memory_region else None


_read_head_cached = lru_cache(maxsize=256)(_read_head)


def write_answer(call: Call, answered: InferenceResult) -> tuple[bytes, int | None]:
    """Return the response body, and the length of its JSON if raw tensors follow."""
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    shared: list[tuple[RegionPart, bytes]] = []
    for one in call.outputs:
        kind, values = call.face.tensor(one.name, answered.outputs)
        shape = [len(values)] if isinstance(values, list) else list(values.shape)
        entry: dict[str, Any] = {"name": one.name, "datatype": kind, "shape": shape}
        if one.place is not None:
            part, packed = call.parts[one.name], pack(values)
            part.check(f"output '{one.name}'", len(packed))
            shared.append((part, packed))
            entry["parameters"] = filled(one.place, len(packed))
        elif one.binary:
            packed = pack(values)
            entry["parameters"] = {"binary_data_size": len(packed)}
            raw.append(packed)
        else:
            entry["data"] = values if isinstance(values, list) else values.reshape(-1).tolist()
        outputs.append(entry)
    head = _encode(call, answered.parameters, outputs)
    write_parts(shared)
    return b"".join([head, *raw]), len(head) if raw else None


def write_around(
    call: Call, parameters: dict[str, Parameter], shapes: Sequence[tuple[int, ...]]
) -> tuple[bytes, bytes, bytes]:
    """Return the JSON of an answer around its network time and its request's number.

    Its outputs all follow as raw tensors of these shapes.
    """
    outputs: list[dict[str, Any]] = []
    for one, shape in zip(call.outputs, shapes, strict=True):
        size = call.count * call.face.row_bytes(one.name, as_text=False)
        kind = call.face.datatype(one.name)
        entry = {"name": one.name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}
        outputs.append(entry)
    text = _encode(call, parameters | {"network_ms": NETWORK, "request": REQUEST}, outputs)
    before, _, rest = text.partition(_MARKS[0])
    between, _, after = rest.partition(_MARKS[1])
    return before, between, after


def _encode(call: Call, parameters: dict[str, Parameter], outputs: list[dict[str, Any]]) -> bytes:
    message = {
        "model_name": call.face.name,
        "model_version": call.face.version,
        "id": call.id,
        "parameters": parameters,
        "outputs": outputs,
    }
    return _encoder.encode(message)


# -- The express line of HTTP: requests with known heads are read without Python.
#
# A thread of its own (`express.cpp`) compares the head of each request with those it has learnt. What it does
# not know it lends, with the connection, to the protocol in Python; if that request turns out to be a plain
# inference call, the thread learns its head and gets the connection back.
#
# Where the compiled part is missing, with TLS, and with SLIM_PURE=1 in the environment, every connection is
# served in Python from the start.

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


class Express(ExpressLine):
    """The line of HTTP: lends connections to the protocol, and gets them back."""

    protocol, form = "http", AnswerForm(write_around, lambda _: b"")
    fine, left, too_many = "200", CLIENT_LEFT, str(TooMany.status)

    def __init__(
        self,
        desk: Desk,
        link: BundleLink,
        connect: Callable[[LentConnection], HttpProtocol],
        handle: Handler,
        sockets: Sequence[socket.socket],
    ) -> None:
        self._connect, self._handle = connect, handle
        self._native = _express.Express([one.fileno() for one in sockets])
        super().__init__(self._native, desk, link, sockets)

    # -- heads

    def forget(self) -> None:
        """Forget all heads: models or limits have changed."""
        super().forget()
        limits = self._desk.limits
        full = {1: f"{limits.connections} connections are open"}
        full[2] = f"{limits.connections_per_address} connections are open from this address"
        for why, text in full.items():
            refusal = response_of(Unavailable(f"{text}, which is the limit; try again"))
            self._native.full(why, written(refusal, keep_alive=False))

    def learn(self, request: HttpRequest, call: Call, json_bytes: int | None) -> None:
        """Learn the head of a request that was read, if it can be known."""
        if json_bytes is None or not is_plain(request, call):
            return
        text = bytes(request.body[:json_bytes])
        layout = raw_layout(text, self._desk.limits, call.face)
        if layout is not None and self._is_to_learn(request.head, text):
            self._learn(request.head, text, call, layout, len(request.body), [])

    def knows(self, request: HttpRequest) -> bool:
        """Whether the thread would understand this request."""
        json_bytes = read_length(request.headers.get("inference-header-content-length", ""))
        return json_bytes is not None and (request.head, bytes(request.body[:json_bytes])) in self._heads

    # -- answers

    def _written(self, call: Call, answered: InferenceResult) -> bytes:
        return written(answer_of(call, answered))

    def _refused(self, error: SlimError) -> tuple[bytes, str]:
        response = response_of(error) if isinstance(error, RefusalError) else refused(500, str(error))
        return written(response), str(response.status)

    async def _read(self, token: int, data: bytes) -> None:
        """Answer a request as the protocol does."""
        reader = RequestReader(self._desk.limits)
        at = 0
        while at < len(data):
            end = reader.step(data, at)
            reader.feed(data[at:end])
            at = end
        response = await self._handle(reader.complete.popleft())
        self._native.answer([token], [written(response)])

    # -- connections

    def _take_notice(self, notice: "Notice") -> None:
        self._spawn(self._lend(*notice))

    async def _lend(self, file: int, arrived: bytes, unsent: bytes, address: str, _: int) -> None:
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
        self._native.adopt(file, lent.address)

    def lost(self, lent: LentConnection) -> None:
        """A connection that was lent is closed."""
        if not lent.is_over:
            lent.is_over = True
            self._native.gone(lent.address)


def answer_of(call: Call, answered: InferenceResult) -> HttpResponse:
    """Return an answer as a response."""
    body, json_bytes = write_answer(call, answered)
    if json_bytes is None:
        return HttpResponse(status=200, body=body)
    headers = {"inference-header-content-length": str(json_bytes)}
    return HttpResponse(status=200, body=body, content_type="application/octet-stream", headers=headers)


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
            headers["vary"] = "Origin"  # other origins get another answer, so caches must not mix them
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
