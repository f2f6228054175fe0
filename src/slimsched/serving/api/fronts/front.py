"""What a front process does with requests: hands calls over to the gateway, and forwards what it does not
know.

A front process's desk: hands calls over to the gateway and waits for the answers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from urllib.parse import quote

import grpc
import numpy as np

from slimsched.models.quality import QualityTable
from slimsched.serving.api.calls import Call, InferenceResult, ModelFace, find_face, write_receipt
from slimsched.serving.api.fronts.bundles import (
    Answers,
    AskedCall,
    BundleLink,
    Calls,
    FrontDrain,
    Models,
    Regions,
    RegionsKnown,
    ToFront,
)
from slimsched.serving.api.grpc_server import SERVICE
from slimsched.serving.api.http_requests import HttpRequest, HttpResponse
from slimsched.serving.api.limits import Ledger, Limits, Unavailable
from slimsched.serving.api.pages import METHODS, Headers, RawMethod
from slimsched.serving.api.service import Tally
from slimsched.serving.api.shared_memory import SharedMemory
from slimsched.serving.domain.model import ModelEntry, ServedModel
from slimsched.serving.live.calls import Answered
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import FrameConnection, LoopLag, Ping, Pong, Wakefulness
from slimsched.serving.scenario.files import read_model

# -- What a front process does not know itself it asks the gateway, over Unix sockets of the same protocols.

HEAD_LIMIT_BYTES = 64 * 2**10
PART_BYTES = 64 * 2**10
PLAIN = "/:@!$&'()*+,;=~"
"""Characters of a path that need no escapes."""
PASSED_ON = frozenset({"authorization", "content-type", "accept"})
"""Headers that the gateway may want to see."""
OWN = frozenset({"content-type", "content-length", "connection", "date"})
"""Headers that this process writes itself."""


class HttpForwarding:
    """Passes requests on to the gateway, one connection each; streams are passed back as they come."""

    def __init__(self, path: str, before: Callable[[], None]) -> None:
        """Call `before` ahead of each request, so that the gateway knows what this process knows."""
        self._path, self._before = path, before

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Ask the gateway, and return its response."""
        self._before()
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=HEAD_LIMIT_BYTES)
            try:
                writer.write(_head(request) + bytes(request.body))
                head = await reader.readuntil(b"\r\n\r\n")
            except BaseException:
                writer.close()
                raise
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise Unavailable("the gateway does not answer; try again shortly") from None
        status, headers = _read_head(head)
        kind = headers.get("content-type", "application/json")
        rest = {name: value for name, value in headers.items() if name not in OWN}
        length = headers.get("content-length")
        if length is None:
            if request.method == "HEAD":
                writer.close()  # nobody reads the stream
            return HttpResponse(
                status=status, content_type=kind, headers=rest, stream=_stream(reader, writer)
            )
        try:
            body = await reader.readexactly(int(length))
        except asyncio.IncompleteReadError:
            raise Unavailable("the gateway broke off its answer; try again shortly") from None
        finally:
            writer.close()
        return HttpResponse(status=status, body=body, content_type=kind, headers=rest)


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    try:
        while part := await reader.read(PART_BYTES):
            yield part
    finally:
        writer.close()


def _head(request: HttpRequest) -> bytes:
    method = "GET" if request.method == "HEAD" else request.method  # the length of a body is that of GET
    lines = [f"{method} {quote(request.path, safe=PLAIN)} HTTP/1.1", "host: gateway", "connection: close"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name in PASSED_ON]
    if len(request.body):
        lines.append(f"content-length: {len(request.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return int(first.split(" ")[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


class GrpcForwarding:
    """Passes gRPC methods on to the gateway, with their messages as they are."""

    def __init__(self, path: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{path}")

    @property
    def methods(self) -> dict[str, RawMethod]:
        """Each method by its name."""
        return {name: self._method(name) for name in METHODS}

    async def close(self) -> None:
        """Close the connection to the gateway."""
        await self._channel.close()

    def _method(self, name: str) -> RawMethod:
        ask = self._channel.unary_unary(f"/{SERVICE}/{name}")

        async def answer(raw: bytes, headers: Headers) -> bytes:
            kept = tuple(pair for pair in headers if pair[0] == "authorization")
            return bytes(await ask(raw, metadata=kept))

        return answer


REPORT_S = 0.1
"""How often a front hands its counts over to the gateway."""


class FrontLink:
    """Numbers the calls, keeps what the gateway must read of them, and counts responses for it."""

    passes_on = True
    """Everything but inference is answered by the gateway."""

    def __init__(self, arena: InputArena | None, *, shared_memory: bool = False) -> None:
        self.arena, self.ledger, self.limits, self.tally = arena, Ledger(), Limits(), Tally()
        self.memory = SharedMemory(self.ledger, is_allowed=shared_memory)
        self.introduced, self.drained = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._faces: dict[str, ModelFace] = {}
        self.bundles = BundleLink(self._pass_on, arena)
        self.when_models_change: list[Callable[[], None]] = []
        self._lag, self._awake = LoopLag(), Wakefulness()

    def use(self, connection: FrameConnection) -> None:
        """Talk to the gateway over this connection."""
        self._connection = connection

    def _pass_on(self, calls: Calls) -> None:
        self._connection.send(calls)
        self._awake.expect()

    def received(self, connection: FrameConnection, message: ToFront) -> None:
        """Take a message of the gateway."""
        match message:
            case Answers():
                self.bundles.received(message)
                if not self.bundles.is_waiting:
                    self._awake.rest()
            case Models(entries=entries, accuracies=accuracies, limits=limits):
                models = map(_model, entries, accuracies)
                self._faces = {model.name: ModelFace(model) for model in models}
                self.limits = limits
                self.ledger.proxies = limits.proxy_addresses
                if self.arena is not None:
                    self.arena.limit_bytes = limits.held_bytes
                for tell in self.when_models_change:
                    tell()
                self.introduced.set()
            case Regions():
                self.memory.follow(message.entries)
                connection.send(RegionsKnown(change=message.change))
            case FrontDrain():
                self.drained.set()
            case Ping():
                connection.send(Pong())

    def face(self, name: str, version: str = "") -> ModelFace:
        """Find a model by name; refuse one, or a version, that this server has not."""
        return find_face(self._faces, name, version)

    async def report_forever(self) -> None:
        """Hand the counts over to the gateway regularly."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.report()

    def report(self) -> None:
        """Hand the counts over to the gateway."""
        self._connection.send(self.tally.take())

    async def infer(self, call: Call) -> InferenceResult:
        """Let the gateway run a call, or raise what it says."""
        future: asyncio.Future[Answered] = self._loop.create_future()
        asked = AskedCall(call, monotonic() - self._lag.seconds, future)
        self.bundles.ask(asked)
        try:
            answered = await future
        finally:
            if (bundle := asked.bundle) is not None:
                if future.cancelled():
                    self.bundles.leave(bundle.number, asked.start, asked.end)
                if bundle.leave(self.arena):
                    self.bundles.done(bundle.number)
        self.tally.count_examples(answered.receipts)
        quality = call.face.model.quality.accuracy
        parameters = write_receipt(call.face.spec, answered.receipts, quality, call.terms)
        return InferenceResult(outputs=answered.outputs, parameters=parameters)


def _model(entry: ModelEntry, accuracies: Sequence[float]) -> ServedModel:
    """Read a model as the gateway knows it, without its code and weights."""
    model = read_model(entry.source, rated=False)
    quality = QualityTable(model.tree, name="the gateway's", accuracy=np.array(accuracies))
    return model.with_quality(quality).numbered(entry.number)
