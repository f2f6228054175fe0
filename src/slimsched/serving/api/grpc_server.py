"""The gRPC server: the same handler and refusals as over HTTP, with protocol buffers instead of JSON.

The compiled line reads calls whose heads are known; with TLS and on Unix sockets the gRPC library serves.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from slimsched.serving.api.limits import CIPHERS

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # processes are started afresh, never forked
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", CIPHERS)  # gRPC reads both when it is imported

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from slimsched.core.config import ConfigError, SlimError, read_small_file
from slimsched.serving.api.calls import LONGEST_ID, AnswerForm, Call, InferenceResult, Loan, is_plain_call
from slimsched.serving.api.express.line import ExpressLine, listen
from slimsched.serving.api.fronts.bundles import CallBatcher
from slimsched.serving.api.grpc_codec import (
    before_raw,
    parse,
    pb,
    raw_layout,
    read_call,
    read_parsed_call,
    write_answer,
    write_around,
)
from slimsched.serving.api.limits import (
    CODINGS,
    Account,
    BadRequest,
    Ledger,
    Limits,
    NotFound,
    NotOffered,
    RefusalError,
    Token,
    TooLarge,
    TooLate,
    TooMany,
    Unavailable,
    network_of,
    retry_of,
    unpacked,
)
from slimsched.serving.api.pages import CHECK, HEALTH, SERVICE, Headers, RawMethod
from slimsched.serving.api.service import CallHandler, run_call

if TYPE_CHECKING:
    from slimsched.serving.api.express._compiled_line import GrpcNotice
    from slimsched.serving.api.express._express_grpc import Express

# -- The server of the gRPC library: for TLS, for Unix sockets, and where our own thread is not compiled.

LEAST_PING_MS, PING_STRIKES = 4500, 3
"""Clients may ask every five seconds whether the connection lives; who asks too soon too often must go."""


# -- A gRPC call that our own thread reads: the few methods of the library's context that the server uses.

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its size."""

OPENS, MESSAGE, ENDS, TOO_LARGE, FULL, SENT = 1, 2, 4, 8, 16, 32
"""What the thread says about a call, as `express_grpc_call.hpp` numbers it."""

UNESCAPED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

Metadata = tuple[tuple[str, str], ...]


class CallEndedError(Exception):
    """The call has its status, so there is nothing left to do for it."""


class GrpcContext:
    """One call, of which the thread says what has come."""

    def __init__(
        self, line: "Express", token: int, head: bytes, longest_bytes: int, address: str = ""
    ) -> None:
        """`head` is what `written_head` writes."""
        self._address = address
        self._line, self._token, self._longest_bytes = line, token, longest_bytes
        pairs = [line.partition("\0") for line in head.decode("latin-1").rstrip("\n").split("\n")]
        self._metadata: Metadata = tuple([(name, value) for name, _, value in pairs])
        self.path = dict(self._metadata).get(":path", "")
        self._arrived: deque[bytes | RefusalError] = deque()
        self._is_wanted, self._has_ended, self._is_over = True, False, False
        self._progress: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._trailers: tuple[tuple[str, str | bytes], ...] = ()

    # -- what the thread says

    def received(self, kind: int, message: bytes) -> None:
        """Take what has come, or what has happened."""
        if kind & MESSAGE:
            self._arrived.append(message)
        if kind & TOO_LARGE:
            why = f"the message has more than {self._longest_bytes} bytes; send fewer images per request"
            self._arrived.append(TooLarge(why))
        if kind & FULL:
            self._arrived.append(Unavailable("too many bytes of requests are under way; try again"))
        self._has_ended |= bool(kind & ENDS)
        if kind & (MESSAGE | ENDS | TOO_LARGE | FULL):
            self._is_wanted = False
            _wake(self._progress)
        if kind & SENT:
            _wake(self._sent)

    # -- what the server asks for, as of the library's context

    def invocation_metadata(self) -> Metadata:
        """Return the headers on which an answer can depend."""
        return self._metadata

    def peer(self) -> str:
        """Return who calls; the thread does not know the port."""
        return f"{'ipv6' if ':' in self._address else 'ipv4'}:{self._address}:0"

    def arrived(self) -> bytes | None:
        """Return the next message if it has come."""
        if not self._arrived:
            return None
        message = self._arrived.popleft()
        if isinstance(message, RefusalError):
            raise message
        return self._unpacked(message)

    async def read(self) -> Any:
        """Return the next message once it has come, or grpc.aio.EOF after the last one."""
        while (message := self.arrived()) is None:
            if self._has_ended:
                return grpc.aio.EOF
            if not self._is_wanted:
                self._is_wanted = True
                self._line.tell("read", self._token)
            self._progress = asyncio.get_running_loop().create_future()
            await self._progress
        return message

    async def write(self, raw: bytes) -> None:
        """Send one of several messages; return when the client has room for the next."""
        self._sent = asyncio.get_running_loop().create_future()
        self._line.tell("write", self._token, framed(raw))
        await self._sent

    def set_trailing_metadata(self, pairs: Iterable[tuple[str, str | bytes]]) -> None:
        """Send these behind the status."""
        self._trailers = tuple(pairs)

    async def abort(self, code: grpc.StatusCode, why: str = "") -> None:
        """End the call with a status other than OK."""
        self.end(written_status(code, why, self._trailers))
        raise CallEndedError

    # -- the end

    def end(self, answer: bytes) -> None:
        """End the call with an answer or a status."""
        if not self._is_over:
            self._is_over = True
            self._line.answer([self._token], answer)

    def cancel(self) -> None:
        """End the call without a word."""
        if not self._is_over:
            self._is_over = True
            self._line.tell("cancel", self._token)

    def _unpacked(self, message: bytes) -> bytes:
        """Return a message without its prefix; expand one that is compressed."""
        if not message[0]:
            return message[PREFIX_BYTES:]
        encoding = dict(self._metadata).get("grpc-encoding", "identity")
        if message[0] != 1 or encoding not in CODINGS:
            raise NotOffered(
                f"messages in encoding '{encoding}' are not understood; send gzip, or plain ones"
            )
        return unpacked(message[PREFIX_BYTES:], encoding, self._longest_bytes)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def written_head(metadata: Metadata) -> bytes:
    """Write headers as the thread keeps them."""
    return ("".join([f"{name}\0{value}\n" for name, value in metadata]) + "\n").encode("latin-1")


def framed(raw: bytes) -> bytes:
    """Return a message as it travels."""
    return b"\0" + len(raw).to_bytes(4, "big") + raw


def written_status(code: grpc.StatusCode, why: str, more: Iterable[tuple[str, str | bytes]] = ()) -> bytes:
    """Write a status for the thread: trailers, with a zero behind each name and each value."""
    pairs = [("grpc-status", str(code.value[0])), ("grpc-message", quote(why, safe=UNESCAPED))]
    pairs += [(name, value) for name, value in more if isinstance(value, str)]
    return b"\1" + "".join([f"{name}\0{value}\0" for name, value in pairs]).encode("latin-1", "replace")


FINE = written_status(grpc.StatusCode.OK, "")
"""The status of a call whose answer has been sent."""


# -- Reads the message of a gRPC call, within limits that gRPC itself does not have.
#
# gRPC keeps a message that arrives slowly for as long as its client likes, for every call at once.
# So only a few messages may arrive at the same time, each in a limited time; other calls wait.

SMALL_AT_ONCE = 8
"""How many messages other than inference requests may arrive at the same time."""


class GrpcReading:
    """Lets messages in; those of inference requests and the others do not wait for each other."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self.account: Account = ledger.open("gRPC")
        self.longest_bytes = 2 * limits.body_bytes
        """gRPC refuses longer messages itself, with RESOURCE_EXHAUSTED."""
        large_at_once = max(2, limits.held_bytes // self.longest_bytes)
        self._large, self._small = asyncio.Semaphore(large_at_once), asyncio.Semaphore(SMALL_AT_ONCE)

    async def read(self, context: Any, limits: Limits, *, is_large: bool) -> bytes:
        """Return the message of a call; refuse one that is too large, too slow, or more than can be held."""
        raw = context.arrived() if isinstance(context, GrpcContext) else None
        if raw is None:
            within_s = limits.grace_s + is_large * limits.body_bytes / limits.pace_bytes_per_s / 16
            try:
                async with self._large if is_large else self._small, asyncio.timeout(within_s):
                    raw = await context.read()
            except TimeoutError:
                raise TooLate(f"the message did not arrive whole in {within_s:.0f} s") from None
        if raw is grpc.aio.EOF:
            raise BadRequest("the call has no message; send one")
        self.check(raw, limits)
        return bytes(raw)

    def check(self, raw: bytes, limits: Limits) -> None:
        """Refuse a message that is too large, or more than can be held."""
        if len(raw) > limits.body_bytes:
            raise BadRequest(
                f"the message has {len(raw)} bytes, {limits.body_bytes} are the limit; "
                "send fewer images per request"
            )
        if 2 * (self.account.held_bytes + len(raw)) > limits.held_bytes:
            raise Unavailable("too many bytes of requests are under way; try again")


# -- ModelStreamInfer: many inference requests over one gRPC call, answered as they are ready.
#
# A stream may have a limited number of requests under way. It reads no more meanwhile, so that gRPC's flow
# control holds up a client that sends faster. gRPC does not tell an idle stream from one whose next message
# arrives slowly, and keeps what has arrived; so the number of streams is limited, and idle ones are ended.

log = logging.getLogger("slim.grpc")

HEALTH_LOOK_S = 0.5
"""How often a stream that watches the health looks."""
NOT_SERVING = health_pb2.HealthCheckResponse(status="NOT_SERVING").SerializeToString()
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse(status="SERVICE_UNKNOWN").SerializeToString()
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
"""Version 1 has the same messages."""
for _one in (health_pb2, reflection_pb2):  # beside the services of this server, whose pool is its own
    pb.DESCRIPTOR.pool.AddSerializedFile(_one.DESCRIPTOR.serialized_pb)
_described = reflection.aio.ReflectionServicer((SERVICE, HEALTH[1:], REFLECTION), pb.DESCRIPTOR.pool)

Infer = Callable[[list[Any]], Awaitable[bytes]]
"""Answers the request in the list, which it may clear once it has a copy; it may raise refusals."""


def address_of(peer: str) -> str:
    """Return a client's address; gRPC writes peers as in ipv4:127.0.0.1:5000 and ipv6:%5B::1%5D:5000."""
    kind, _, rest = unquote(peer).partition(":")
    return network_of(rest.rpartition(":")[0].strip("[]")) if kind in ("ipv4", "ipv6") else ""


class GrpcStreams:
    """All streams of a server: of inference, and those that watch its health or ask what it offers."""

    def __init__(
        self, handler: CallHandler, reading: GrpcReading, token: Token, infer: Infer, check: RawMethod
    ) -> None:
        """`check` answers what the server's health is."""
        self.handler, self.reading, self.infer = handler, reading, infer
        self._token, self._check = token, check
        self._open: Counter[str] = Counter()  # by the client's address
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Take no more requests; streams end once those under way are answered."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    def methods(self) -> "dict[str, Method]":
        """Return the methods with streams by path, as gRPC calls them."""
        reflecting = partial(self._serve, self._reflect)
        return {
            f"/{SERVICE}/ModelStreamInfer": partial(
                self._serve, lambda context: _Stream(self, context).run()
            ),
            f"{HEALTH}/Watch": partial(self._serve, self._watch),
            f"/{REFLECTION}/ServerReflectionInfo": reflecting,
            f"/{REFLECTION.replace('v1alpha', 'v1')}/ServerReflectionInfo": reflecting,
        }

    async def _watch(self, context: Any) -> None:
        """Tell the health at once and whenever it changes, until the client leaves or the server ends."""
        raw, told = await self.reading.read(context, self.handler.limits, is_large=False), b""
        while True:
            is_last = self.stopping.done()
            try:
                health = await self._check(raw, ()) if not is_last else NOT_SERVING
            except (NotFound, grpc.aio.AioRpcError):  # here, or from the gateway
                health = SERVICE_UNKNOWN
            if health != told:
                async with asyncio.timeout(self.handler.limits.sending_s):
                    await context.write(told := health)
            if is_last:
                raise Unavailable("the server is draining")
            await asyncio.wait((self.stopping,), timeout=HEALTH_LOOK_S)

    async def _reflect(self, context: Any) -> None:
        """Answer which services and messages there are, one question after the other."""

        async def questions() -> AsyncIterator[Any]:
            while True:
                async with asyncio.timeout(self.handler.limits.idle_s):
                    raw = await context.read()
                if raw is grpc.aio.EOF:
                    return
                self.reading.check(raw, self.handler.limits)
                yield parse(raw, reflection_pb2.ServerReflectionRequest)

        async for answer in _described.ServerReflectionInfo(questions(), context):
            async with asyncio.timeout(self.handler.limits.sending_s):
                await context.write(answer.SerializeToString())

    async def _serve(self, run: Callable[[Any], Awaitable[None]], _: Any, context: Any) -> None:
        """Serve one stream, within their number."""
        address = address_of(context.peer())
        self._open[address] += 1
        try:
            metadata = dict(context.invocation_metadata() or ())
            self._token.check(str(metadata.get("authorization", "")), "metadata authorization")
            most = self.handler.limits.streams
            share = most if address in self.handler.ledger.proxies else -(-most // 2)
            if self._open.total() > most or self._open[address] > share:
                where, limit = ("", most) if self._open.total() > most else (" from this address", share)
                raise TooMany(
                    f"{limit} streams are open{where}, which is the limit; use ModelInfer, or try again", 1.0
                )
            await run(context)
            return
        except RefusalError as refusal:
            code, why = refusal.grpc_code, str(refusal)
        except TimeoutError:
            code, why = TooLate.grpc_code, "the client neither sent nor read for too long; start a new stream"
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
        await context.abort(getattr(grpc.StatusCode, code), why)


class _Stream:
    """One stream: reads requests one by one, answers them side by side."""

    def __init__(self, streams: GrpcStreams, context: Any) -> None:
        self._streams, self._context = streams, context
        self._free = asyncio.Semaphore(self._limits.pipelined_requests)
        self._under_way: set[asyncio.Task[None]] = set()
        self._turn_to_write = asyncio.Lock()
        self._idle_since_s = monotonic()
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    @property
    def _limits(self) -> Limits:
        return self._streams.handler.limits  # they follow the models

    async def run(self) -> None:
        """Serve until the client has sent all and has all answers; raise a refusal if it ends before."""
        reader = asyncio.create_task(self._take_requests())
        try:
            end = await self._watch(reader)
            reader.cancel()
            if self._under_way:
                await asyncio.wait(self._under_way)
        finally:  # the client left, or does not read
            for task in (reader, *self._under_way):
                task.cancel()
        if end is not None:
            raise end

    async def _take_requests(self) -> None:
        while True:
            await self._free.acquire()
            raw = await self._context.read()
            if raw is grpc.aio.EOF:
                return
            task = asyncio.create_task(self._answer([raw]))
            del raw  # kept no longer than the answer needs it
            self._under_way.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        self._idle_since_s = monotonic()
        self._free.release()

    async def _watch(self, reader: "asyncio.Task[None]") -> RefusalError | None:
        """Wait until all requests are read; return why the stream must end before, if it must."""
        stopping, idle_s = self._streams.stopping, self._limits.idle_s
        wait_s = idle_s
        while True:
            await asyncio.wait((reader, stopping), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
                return None
            if stopping.done():
                return Unavailable("the server is draining; start a stream elsewhere, or shortly")
            wait_s = idle_s if self._under_way else self._idle_since_s + idle_s - monotonic()
            if wait_s <= 0.0:
                return TooLate(f"no request came whole for {idle_s:g} s; start a new stream")

    async def _answer(self, messages: list[Any]) -> None:
        """Answer one request; its errors are its own, and the stream goes on."""
        handler, reading = self._streams.handler, self._streams.reading
        began_s, code, size = monotonic(), "CANCELLED", 0
        answer = pb.ModelStreamInferResponse()
        try:
            reading.check(messages[0], self._limits)
            size = len(messages[0])
            handler.ledger.hold(reading.account, size)
            messages[0] = parse(messages[0], pb.ModelInferRequest)
            answer.infer_response.id = messages[0].id[:LONGEST_ID]
            answer.infer_response.ParseFromString(await self._streams.infer(messages))
            answer.infer_response.parameters["triton_final_response"].bool_param = True  # each has one answer
            code = "OK"
        except RefusalError as refusal:
            code, answer.error_message = refusal.grpc_code, str(refusal)
        except Exception:
            code, answer.error_message = "INTERNAL", "an unexpected failure; see the server's log"
            log.exception("a request of ModelStreamInfer failed")
        finally:
            handler.ledger.hold(reading.account, -size)
            handler.tally.count_response("grpc", "infer", code, monotonic() - began_s)
        await self._write(answer.SerializeToString())

    async def _write(self, raw: bytes) -> None:
        """Send an answer; end the stream if its client does not read it in time, or is gone."""
        try:
            async with asyncio.timeout(self._limits.sending_s), self._turn_to_write:
                await self._context.write(raw)
        except Exception:
            self._task.cancel()


# -- The express line of gRPC: calls with known heads are read without Python.
#
# The thread gives every call that it does not know to the methods of the server, as a context with the few
# methods that they use. Where the compiled part or its library is missing, with TLS, and with SLIM_PURE=1 in
# the environment, the gRPC library serves all calls.

try:
    from slimsched.serving.api.express import _express_grpc
except ImportError:  # not compiled here, or without its library
    is_available = False
else:
    is_available = not os.environ.get("SLIM_PURE")


LIMITS = ("calls", "unread_bytes", "head_bytes", "headers", "sending_s", "head_s")
"""The limits of calls that the thread keeps."""
LARGEST_BYTES = 2**20
"""The largest request that is worth it: with larger ones, most time goes into their bytes."""

Method = Callable[[Any, Any], Awaitable[bytes | None]]
"""Serves one call, as the gRPC library calls it; a stream returns nothing."""


class GrpcExpress(ExpressLine["GrpcNotice"]):
    """The line of gRPC: serves the methods with these paths."""

    protocol, form = "grpc", AnswerForm(write_around, before_raw)
    fine, left, too_many = "OK", "CANCELLED", TooMany.grpc_code

    def __init__(
        self,
        handler: CallHandler,
        link: CallBatcher,
        methods: Mapping[str, Method],
        sockets: Sequence[socket.socket],
    ) -> None:
        self._methods = methods
        self._calls: dict[int, GrpcContext] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._native = _express_grpc.Express([one.fileno() for one in sockets])
        super().__init__(self._native, handler, link, sockets)

    # -- heads

    def _settings(self) -> dict[str, float]:
        limits = self._handler.limits
        of_calls = {name: getattr(limits, name) for name in LIMITS}
        return {**super()._settings(), **of_calls, "message_bytes": self._longest_bytes}

    @property
    def _longest_bytes(self) -> int:
        return 2 * self._handler.limits.body_bytes

    def learn(self, headers: Metadata, raw: bytes, call: Call) -> None:
        """Learn the head of a call that was read, if it can be known."""
        if len(raw) > LARGEST_BYTES or not is_plain_call(call):
            return
        if (found := raw_layout(raw, self._handler, call.api)) is None:
            return
        text_bytes, layout, fixed = found
        head, text = written_head(headers), framed(raw)[: PREFIX_BYTES + text_bytes]
        self._learn(head, text, call, layout, PREFIX_BYTES + len(raw), fixed)

    # -- answers

    def _written(self, call: Call, answered: InferenceResult) -> bytes:
        return framed(write_answer(call, answered))

    def _refused(self, error: SlimError) -> tuple[bytes, str]:
        if not isinstance(error, RefusalError):
            return written_status(grpc.StatusCode.INTERNAL, str(error)), "INTERNAL"
        code: grpc.StatusCode = getattr(grpc.StatusCode, error.grpc_code)
        return written_status(code, str(error), retry_of(error)), error.grpc_code

    # -- calls that Python serves

    def _take_notice(self, notice: "GrpcNotice") -> None:
        token, head, message, address, kind = notice
        if kind & OPENS:
            context = GrpcContext(self._native, token, head, self._longest_bytes, address)
            self._calls[token] = context
            self._note(token, self._spawn(self._serve(context)))
        if (known := self._calls.get(token)) is not None:
            known.received(kind, message)

    async def _read(self, token: int, data: bytes) -> None:
        head, _, message = data.partition(b"\n\n")
        context = GrpcContext(self._native, token, head, self._longest_bytes)
        context.received(MESSAGE, message)
        task = asyncio.current_task()
        assert task is not None
        self._note(token, task)
        await self._serve(context)

    def _note(self, token: int, task: "asyncio.Task[None]") -> None:
        """Keep the task of a call until it is done, so that it can be cancelled."""
        self._serving[token] = task
        task.add_done_callback(lambda _: self._forget_call(token))  # it may end before it begins

    def _forget_call(self, token: int) -> None:
        self._calls.pop(token, None)
        self._serving.pop(token, None)

    async def _serve(self, context: GrpcContext) -> None:
        """Let a method serve a call, and see that it ends."""
        try:
            if (method := self._methods.get(context.path)) is None:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                return
            answer = await method(None, context)
            context.end(FINE if answer is None else framed(answer))
        except CallEndedError:
            pass
        except Exception:
            log.exception("%s failed", context.path)
            context.end(
                written_status(grpc.StatusCode.INTERNAL, "an unexpected failure; see the server's log")
            )
        finally:
            context.cancel()  # if it has not ended

    def _left(self, token: int) -> None:
        if (task := self._serving.get(token)) is not None:
            task.cancel()
        else:
            super()._left(token)

    def abort(self) -> None:
        """Close all connections at once, and serve no more calls."""
        super().abort()
        for task in list(self._tasks):
            task.cancel()


# -- TLS for both protocols: a certificate and its key.

PEM_LIMIT_BYTES = 2**20


def read_tls(cert: Path | None, key: Path | None) -> tuple[ssl.SSLContext, grpc.ServerCredentials] | None:
    """Read the certificate and its key, for HTTP and for gRPC; None if neither is given."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        pair = read_small_file(key, PEM_LIMIT_BYTES), read_small_file(cert, PEM_LIMIT_BYTES)
        context.load_cert_chain(cert, key, password=_refuse_encrypted)
    except (OSError, ssl.SSLError, ConfigError) as error:
        raise ConfigError(f"cannot use {cert} and {key} for TLS: {error}") from None
    return context, grpc.ssl_server_credentials([pair])


def _refuse_encrypted() -> str:
    """Called where the key has a password; nobody may be there to type it."""
    raise ConfigError("the key is encrypted; decrypt it with: openssl pkey -in KEY -out PLAIN_KEY")


INFER = f"/{SERVICE}/ModelInfer"
OPEN = (CHECK, f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady")
"""Probes ask these, and have no token."""


class GrpcServer:
    """Hands inference calls to a handler; `others` answers the other methods, by path."""

    def __init__(
        self,
        handler: CallHandler,
        others: Mapping[str, RawMethod],
        *,
        link: CallBatcher,
        token: str = "",
    ) -> None:
        """Calls whose heads are known go over the link, in bundles, where that is possible."""
        self._handler, self._token, self._link = handler, Token(token), link
        self._reading = GrpcReading(handler.ledger, handler.limits)
        self._streams = GrpcStreams(
            handler, self._reading, self._token, partial(self._infer, read_parsed_call), others[CHECK]
        )
        methods = {**others, INFER: self._model_infer}
        self._unary = {path: self._guarded(path, method) for path, method in methods.items()}
        self._library: grpc.aio.Server | None = None
        self._express: GrpcExpress | None = None

    async def start(self, host: str, port: int, credentials: Any = None, *, shares_port: bool = False) -> int:
        """Start to listen and return the port; port 0 picks a free one. Other processes may share it."""
        if credentials is not None or not is_available:
            return await self._start_library(f"{host}:{port}", credentials, shares_port)
        sockets = listen(host, port, shares_port=shares_port)
        methods = self._unary | self._streams.methods()
        self._express = GrpcExpress(self._handler, self._link, methods, sockets)
        return int(sockets[0].getsockname()[1])

    async def start_unix(self, address: str) -> None:
        """Start to listen at unix:PATH, for processes of this server."""
        await self._start_library(address, None, shares_port=False)

    async def _start_library(self, address: str, credentials: Any, shares_port: bool) -> int:
        """Let the gRPC library read the calls."""
        limits = self._handler.limits
        server = self._library = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._reading.longest_bytes),
                ("grpc.max_concurrent_streams", limits.calls),
                ("grpc.http2.bdp_probe", 0),  # it lets each call send megabytes before its turn to be read
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", int(1e3 * limits.idle_s)),
                ("grpc.so_reuseport", int(shares_port)),
                ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_ping_strikes", PING_STRIKES),
            ],
            maximum_concurrent_rpcs=limits.calls,
        )
        unary, streams = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers = {path: unary(method) for path, method in self._unary.items()}  # on the wire the same
        handlers |= {path: streams(method) for path, method in self._streams.methods().items()}
        for service in {path.split("/")[1] for path in handlers}:
            own = {path.split("/")[2]: one for path, one in handlers.items() if path.split("/")[1] == service}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
        await server.start()
        return int(bound)

    async def stop(self) -> None:
        """Refuse new calls and let the calls under way finish, in a limited time."""
        self._streams.stop()
        if self._library is not None:
            await self._library.stop(grace=self._handler.limits.drain_s)
        if self._express is not None:
            await self._express.stop(self._handler.limits.drain_s)
            self._express.abort()

    async def abort(self) -> None:
        """End all calls at once."""
        if self._library is not None:
            await self._library.stop(grace=None)
        if self._express is not None:
            self._express.abort()

    def models_changed(self) -> None:
        """Read heads anew: they may mean something else now."""
        if self._express is not None:
            self._express.forget()

    def _guarded(self, path: str, method: RawMethod) -> Callable[[Any, Any], Awaitable[Any]]:
        """Wrap a method: check the token, read the message, turn refusals into status codes."""
        kind = "infer" if path == INFER else "other"
        is_counted = kind == "infer" or not self._handler.passes_on
        ledger, account = self._handler.ledger, self._reading.account

        async def call(_: Any, context: Any) -> Any:
            began_s, code, size, why = monotonic(), "CANCELLED", 0, ""
            try:
                headers: Headers = tuple(context.invocation_metadata() or ())
                if path not in OPEN:
                    self._token.check(str(dict(headers).get("authorization", "")), "metadata authorization")
                limits = self._handler.limits
                raw = await self._reading.read(context, limits, is_large=kind == "infer")
                size = len(raw)
                ledger.hold(account, size)
                messages = [raw]
                del raw
                answer = await method(messages.pop(), headers)  # kept no longer than the method needs it
                self._limit_sending(limits)
                code = "OK"
                return answer
            except RefusalError as refusal:
                code, why = refusal.grpc_code, str(refusal)
                context.set_trailing_metadata(retry_of(refusal))
            except grpc.aio.AioRpcError as error:  # of the process that it was passed on to
                code, why = error.code().name, error.details() or ""
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
            except Exception:
                code, why = "INTERNAL", "an unexpected failure; see the server's log"
                log.exception("%s failed", path)
            finally:
                ledger.hold(account, -size)
                if is_counted:
                    self._handler.tally.count_response("grpc", kind, code, monotonic() - began_s)
            # gRPC keeps the error that this raises; one attached to it would keep the message as well
            return await context.abort(getattr(grpc.StatusCode, code), why)

        return call

    def _limit_sending(self, limits: Limits) -> None:
        """End the call, which this task carries out, if its client does not read the answer in time."""
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(limits.sending_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())

    async def _model_infer(self, raw: bytes, headers: Headers) -> bytes:
        def read_and_learn(raw: bytes, handler: CallHandler, loan: Loan) -> Call:
            call = read_call(raw, handler, loan)
            if self._express is not None:
                self._express.learn(headers, raw, call)
            return call

        return await self._infer(read_and_learn, [raw])

    async def _infer(self, read: Callable[[Any, CallHandler, Loan], Call], messages: list[Any]) -> bytes:
        """Answer the request in the list; it is taken out as soon as it is not needed any more."""

        def read_first(handler: CallHandler, loan: Loan) -> Call:
            call = read(messages[0], handler, loan)
            if not handler.passes_on:
                messages.clear()  # the call has the tensors
            return call

        return write_answer(*await run_call(self._handler, read_first))
