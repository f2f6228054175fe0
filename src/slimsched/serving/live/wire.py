"""What gateway and server processes say to each other, how it travels, and when event loops do it.

Messages are frames of length-prefixed MessagePack on a socket. Nothing here needs torch.
"""

import asyncio
import gc
import hmac
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from slimsched.core.config import SlimError
from slimsched.core.log import Header, LogWriter
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.domain.profile import ProfileRecord
from slimsched.serving.domain.request import Block
from slimsched.serving.gateway.messages import (
    BlockDropped,
    Forget,
    InputLost,
    RecallRequests,
    SegmentFinished,
    TelemetryReceived,
)
from slimsched.serving.scheduler.scheduler import SchedulerOptions

# -- One end of a connection that carries whole messages: length-prefixed MessagePack frames.

FRAME_LIMIT_BYTES = 256 * 2**20
HEAD_BYTES = 4
LARGE_BYTES = 2**16
"""From this size on, a second write costs less than a copy."""

_encoder = msgspec.msgpack.Encoder()


class FrameError(SlimError):
    """A peer sent data that is not a valid frame."""


class FrameConnection(asyncio.Protocol):
    """Delivers each message as soon as it is complete, without a task or a stream in between.

    A peer that sends an invalid frame is disconnected.
    """

    def __init__(
        self,
        kind: Any,
        received: "Callable[[FrameConnection, Any], None]",
        lost: "Callable[[FrameConnection], None]",
        limit_bytes: int = FRAME_LIMIT_BYTES,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._received, self._lost = received, lost
        self._buffer = bytearray()
        self._spoke = False

    def spoke_since(self) -> bool:
        """Whether the peer has sent anything since the last call."""
        spoke, self._spoke = self._spoke, False
        return spoke

    def send(self, message: Struct) -> None:
        """Send without waiting; what is sent to a connection that is closing is lost."""
        if self._transport.is_closing():
            return
        body = _encoder.encode(message)
        head = len(body).to_bytes(HEAD_BYTES, "little")
        if len(body) < LARGE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def close(self) -> None:
        """Send all pending data, then close."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once, for a peer that does not answer."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection opens."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # uvloop then writes at once, not at the end of its round

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio when either side closed the connection."""
        self._lost(self)

    def data_received(self, data: bytes | bytearray) -> None:
        """Deliver every message that is now complete."""
        self._spoke = True
        if self._buffer:
            self._buffer += data
            if not self._is_whole():
                return
            data, self._buffer = self._buffer, bytearray()  # handed over, not copied
        start, end = 0, len(data)
        while end - start >= HEAD_BYTES:
            size = int.from_bytes(data[start : start + HEAD_BYTES], "little")
            if size > self.limit_bytes:
                self._transport.abort()
                raise FrameError(f"a frame of {size} bytes was announced; {self.limit_bytes} are the limit")
            after = start + HEAD_BYTES + size
            if after > end:
                break
            self._received(self, self._decoder.decode(memoryview(data)[start + HEAD_BYTES : after]))
            start = after
        self._buffer += data[start:]

    def _is_whole(self) -> bool:
        """Whether at least one message is complete."""
        if len(self._buffer) < HEAD_BYTES:
            return False
        size = int.from_bytes(self._buffer[:HEAD_BYTES], "little")
        return size > self.limit_bytes or len(self._buffer) >= HEAD_BYTES + size


# -- What is needed to read a tensor from its bytes.


class TensorFacts(Struct, frozen=True, kw_only=True):
    """Shape, strides and type of a dense tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


# -- The event loop of gateway and servers: uvloop if it is installed, else asyncio.

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    found: T = uvloop.run(work)
    return found


def spare_collector() -> None:
    """Let Python's garbage collector leave alone what is there now and stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # requests leave no cycles behind


# -- Keeps an event loop awake for a short time while it waits for something that comes soon.
#
# A process that sleeps takes 0.05 to 0.2 ms to wake up, and a request passes through several of them. On a
# machine with many cores it is cheaper to look again and again for some milliseconds.

AWAKE_S = 0.003
"""What takes longer than this does not notice a wake-up."""

MANY_CORES = 8
"""With fewer cores than this, whoever stays awake takes a core from others."""


def has_many_cores() -> bool:
    """Whether this process may use enough cores to keep one busy with waiting."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores >= MANY_CORES


class Wakefulness:
    """Lets the running loop look for events without sleeping, on a machine with many cores."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._may = has_many_cores()
        self._is_awake, self._until_s = False, 0.0

    def expect(self) -> None:
        """Something comes soon: stay awake for it."""
        if not self._may:
            return
        self._until_s = monotonic() + AWAKE_S
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._look)

    def rest(self) -> None:
        """Nothing is expected any more."""
        self._until_s = 0.0

    def _look(self) -> None:
        self._is_awake = monotonic() < self._until_s
        if self._is_awake:
            self._loop.call_soon(self._look)


# -- The lag of an event loop: how long what arrives waits before the loop comes to it.
#
# A loop with too much to do reads requests late. They have waited in the sockets meanwhile, and nothing says
# since when. A timer shows it: it is as late as everything else.

PERIOD_S = 0.02


class LoopLag:
    """Measures the running loop fifty times per second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = 0.0
        """How late the loop was the last time."""
        self._expect()

    def _expect(self) -> None:
        self._due_s = monotonic() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._look)

    def _look(self) -> None:
        self.seconds = max(0.0, monotonic() - self._due_s)
        self._expect()

    def stop(self) -> None:
        """Measure no more."""
        self._timer.cancel()


# -- Event logs that are written beside the work.

LOG_PERIOD_S = 1.0
"""How often a log is written to disk."""


async def keep_log(
    writer: LogWriter, title: str, hint: str = "", make_room: Callable[[], None] = lambda: None
) -> None:
    """Every second, write a log to disk and make room for it; report once when it is full."""
    is_told = False
    while True:
        await asyncio.sleep(LOG_PERIOD_S)
        writer.flush()
        make_room()
        if writer.is_full and not is_told:
            is_told = True
            logging.getLogger("slim.log").warning("%s stops: %s%s", title, writer.trouble, hint)


# -- Work that is done once in the event loop's next round, however often it is asked for in this one.


class NextRound:
    """Collects what comes in one round, so that it goes out together."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._is_due = work, False

    def expect(self) -> None:
        """Ask for the work."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        self._work()


# -- What a server is to do, and what its process needs to start: JSON on its standard input.

CANNOT_START = 3
"""The exit code of a server that said why it cannot start."""


class ServerSpec(Struct, frozen=True, kw_only=True):
    """What one server is to do, wherever it runs."""

    index: int
    name: str
    host: Host
    scheduler: SchedulerOptions
    models: list[str]
    """Where each model comes from: the name of a shipped model, or a folder."""
    profiles: list[ProfileRecord]
    """What each model costs on this device, in the order of the models."""
    numbers: list[int] = []
    """The models' numbers, where they are no longer those that the cluster began with."""
    telemetry_period_s: float
    sensors: Literal["measured", "modelled"] = "measured"
    """Whether utilization and memory are asked of the device."""


class ServerLog(Struct, frozen=True, kw_only=True):
    """Where servers write their event logs."""

    folder: str
    header: Header
    limit_bytes: int = 0
    """Limit for all logs of one server, restarts included; 0 for no limit."""


class ServerStart(Struct, frozen=True, kw_only=True):
    """One start of a server's process: what it is to do, who it is, and what it shares with the gateway."""

    spec: ServerSpec
    life: int
    """Counts how often the server has been started."""
    secret: str
    """Known to the gateway and its servers only; it proves to them who is calling."""
    clock_zero_s: float
    """When the clock of gateway and servers began, on this host's monotonic clock."""
    gateway_socket: str
    own_socket: str
    """Where other servers fetch this one's activations."""
    shared_prefix: str
    """How the names of its shared memory begin."""
    arena: str = ""
    """The file with large inputs, shared with the gateway; empty if inputs come in messages."""
    log: ServerLog | None = None


# -- Messages between gateway and servers.
#
# Commands and events of the gateway's and servers' state machines are also sent as they are.


class InputPiece(Struct, frozen=True, array_like=True):
    """Rows of some requests in the input arena: where each input tensor begins."""

    rows: int
    offsets: Sequence[int]


class TakeBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: run this block; its inputs are included, or are at the server at `peer`.

    `inputs` holds the bytes of each input tensor, one row per request. Large inputs lie in the input arena
    instead, and `pieces` says where.
    """

    block: Block
    inputs: list[bytes] = []
    pieces: list[InputPiece] = []
    peer: str = ""


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: stop once nothing is queued or running."""


class Ping(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: answer with a `Pong`."""


class Pong(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: alive."""


class HostModel(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: load one more model and say when it is warm; the profile is that of this device."""

    entry: ModelEntry
    profile: ProfileRecord


class UnhostModel(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: nobody asks for this model any more; give its memory back."""

    number: int


class ModelHosted(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: a model is loaded and warm, or why it cannot be."""

    server: int
    number: int
    error: str = ""


def is_same(said: str, secret: str) -> bool:
    """Whether a caller knows the secret; how long this takes tells nobody how much of it was right."""
    return hmac.compare_digest(said.encode(), secret.encode())


class Introduction(Struct, frozen=True, kw_only=True):
    """The first message of a child process: which one it is; `life` and `secret` prove it."""

    index: int
    life: int = 0
    secret: str = ""


class Ready(Introduction, frozen=True, kw_only=True, tag=True):
    """Server to gateway: warmed up and listening, with these models."""

    pid: int
    models: list[int] = []


class BatchDone(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: the event for the gateway, and the outputs if the plan is complete."""

    finished: SegmentFinished
    outputs: list[bytes] = []


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: hand over these requests' activations; `secret` is the cluster's."""

    requests: list[int]
    secret: str = ""


class SharedTensor(Struct, frozen=True, kw_only=True):
    """A tensor in the shared-memory file `name`, or on the device under `handle`."""

    name: str = ""
    facts: TensorFacts | None = None
    handle: bytes = b""


class Fetched(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: the requested tensors; empty if they are not there."""

    tensors: list[SharedTensor] = []


ToServer = TakeBlock | Forget | RecallRequests | Drain | Ping | HostModel | UnhostModel
ToGateway = Ready | Pong | BatchDone | BlockDropped | InputLost | TelemetryReceived | ModelHosted
