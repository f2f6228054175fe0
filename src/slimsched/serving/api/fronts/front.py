"""A front process: reads requests, hands inference calls to the gateway in bundles, and writes the answers.

Several of them listen at one port, and the system spreads connections over them. What a front does not know
itself it asks the gateway, over Unix sockets of the same protocols. The process ends when the connection to
its gateway closes, so nothing is left running.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from msgspec import Struct

from slimsched.models.quality import QualityTable
from slimsched.serving.api.calls import Call, InferenceResult, result_of
from slimsched.serving.api.fronts.bundles import (
    Answers,
    CallBatcher,
    Calls,
    FrontListens,
    FrontReady,
    Models,
    Regions,
    RegionsKnown,
    ToFront,
)
from slimsched.serving.api.grpc_server import SERVICE, GrpcServer, read_tls
from slimsched.serving.api.http import HttpServer, read_cors
from slimsched.serving.api.http_requests import HttpRequest, HttpResponse
from slimsched.serving.api.limits import Unavailable
from slimsched.serving.api.pages import METHODS, Headers, RawMethod
from slimsched.serving.api.service import CallHandler, Tally
from slimsched.serving.domain.model import ModelEntry, ServedModel
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import (
    Drain,
    FrameConnection,
    LoopLag,
    Ping,
    Pong,
    Wakefulness,
    run,
    spare_collector,
)
from slimsched.serving.options import Listening, set_up_logs
from slimsched.serving.scenario.files import read_model

# -- Everything that a front process needs to start, sent as JSON to its standard input.


class FrontSpec(Struct, frozen=True, kw_only=True):
    """One start of a front process: who it is, where it listens, and what it shares with the gateway."""

    index: int
    life: int
    """Counts how often it has been started."""
    secret: str
    """Known to the gateway and its fronts only; it proves to them who is calling."""
    calls_socket: str
    http_socket: str
    grpc_socket: str
    arena: str = ""
    """The file with large inputs; empty if inputs travel in messages."""
    fronts: int
    """How many there are; they share the ports and the limits."""
    shared_memory: bool = False
    """Whether clients may register their own."""
    listening: Listening

    def open_arena(self) -> InputArena | None:
        """Open this front's part of the memory for large inputs; the gateway has the first."""
        if not self.arena:
            return None
        return InputArena(Path(self.arena), part=1 + self.index, parts=1 + self.fronts)


def read_front_spec(raw: bytes) -> FrontSpec:
    """Read a spec from JSON."""
    return msgspec.json.decode(raw, type=FrontSpec, dec_hook=lambda kind, text: kind(text))


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
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = [line.partition(":") for line in lines]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        status = int(first.split(" ")[1])
        kind = headers.get("content-type", "application/json")
        rest = {name: value for name, value in headers.items() if name not in OWN}
        length = headers.get("content-length")
        if length is None:
            if request.method == "HEAD":
                writer.close()  # nobody reads the stream
            stream = _stream(reader, writer)
            return HttpResponse(status=status, content_type=kind, headers=rest, stream=stream)
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


def forwarded(channel: Any) -> dict[str, RawMethod]:
    """Return all gRPC methods but inference; they pass their messages on to the gateway as they are."""

    def method(name: str) -> RawMethod:
        ask = channel.unary_unary(f"/{SERVICE}/{name}")

        async def answer(raw: bytes, headers: Headers) -> bytes:
            kept = tuple(pair for pair in headers if pair[0] == "authorization")
            return bytes(await ask(raw, metadata=kept))

        return answer

    return {name: method(name) for name in METHODS}


REPORT_S = 0.1
"""How often a front hands its counts over to the gateway."""


class RemoteCallHandler(CallHandler):
    """Numbers the calls, keeps what the gateway must read of them, and counts responses for it."""

    passes_on = True
    """Everything but inference is answered by the gateway."""

    def __init__(
        self,
        connection: FrameConnection,
        arena: InputArena | None,
        *,
        shared_memory: bool = False,
        access_log: bool = False,
        models_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """The connection is that to the gateway."""
        super().__init__(arena, Tally(access_log=access_log), shared_memory=shared_memory)
        self._connection, self._models_changed = connection, models_changed
        self.introduced, self.drained = asyncio.Event(), asyncio.Event()
        self.bundles = CallBatcher(self._pass_on, arena)
        self._lag, self._awake = LoopLag(), Wakefulness()

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
                self.offer(map(_model, entries, accuracies), limits)
                self._models_changed()
                self.introduced.set()
            case Regions():
                self.memory.follow(message.entries)
                connection.send(RegionsKnown(change=message.change))
            case Drain():
                self.drained.set()
            case Ping():
                connection.send(Pong())

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
        answered = await self.bundles.run(call, monotonic() - self._lag.seconds)
        self.tally.count_examples(answered.receipts)
        return result_of(call, answered)


def _model(entry: ModelEntry, accuracies: Sequence[float]) -> ServedModel:
    """Read a model as the gateway knows it, without its code and weights."""
    model = read_model(entry.source, rated=False)
    if accuracies:  # else nobody has measured them yet
        quality = QualityTable(model.tree, name="the gateway's", accuracy=np.array(accuracies))
        model = model.with_quality(quality)
    return model.numbered(entry.number)


# -- The process itself.


def main() -> None:
    """Serve as the spec on standard input says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    spec = read_front_spec(sys.stdin.buffer.read())
    set_up_logs(spec.listening.log_format)
    run(_serve(spec))


async def _serve(spec: FrontSpec) -> None:
    """Introduce itself, listen once the gateway has said what there is, and serve until the end."""
    import grpc  # after `grpc_server`, which says how

    given, gone, servers = spec.listening, asyncio.Event(), list[HttpServer | GrpcServer]()

    def received(connection: FrameConnection, message: ToFront) -> None:
        link.received(connection, message)

    def models_changed() -> None:
        for server in servers:
            server.models_changed()

    try:
        _, gateway = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrameConnection(ToFront, received, lambda _: gone.set()), spec.calls_socket
        )
    except (FileNotFoundError, ConnectionRefusedError):  # the gateway ended while this process started
        return
    link = RemoteCallHandler(
        gateway,
        spec.open_arena(),
        shared_memory=spec.shared_memory,
        access_log=given.access_log,
        models_changed=models_changed,
    )
    gateway.send(FrontReady(index=spec.index, life=spec.life, secret=spec.secret))
    await _first(link.introduced, gone)
    if gone.is_set():
        return
    others = HttpForwarding(spec.http_socket, link.report).answer
    cors, tls = read_cors(given.cors or ()), read_tls(given.tls_cert, given.tls_key)
    channel = grpc.aio.insecure_channel(f"unix:{spec.grpc_socket}")
    http = HttpServer(link, others, token=given.token, cors=cors, link=link.bundles)
    rpc = GrpcServer(link, forwarded(channel), token=given.token, link=link.bundles)
    servers += [http, rpc]
    (context, credentials), shares_port = tls or (None, None), spec.fronts > 1
    http_port = await http.start(given.host, given.http_port, context, shares_port=shares_port)
    grpc_port = await rpc.start(given.host, given.grpc_port, credentials, shares_port=shares_port)
    gateway.send(FrontListens(http_port=http_port, grpc_port=grpc_port))
    spare_collector()
    reporting = asyncio.create_task(link.report_forever())
    await _first(link.drained, gone)
    reporting.cancel()
    if gone.is_set():
        http.abort()
        await rpc.abort()
        return
    await asyncio.gather(http.stop(), rpc.stop())
    await channel.close()
    link.report()
    gateway.close()
    await gone.wait()


async def _first(*events: asyncio.Event) -> None:
    """Wait for any of these events."""
    tasks = [asyncio.ensure_future(one.wait()) for one in events]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()


if __name__ == "__main__":
    main()
