"""The live cluster: the same gateway as simulated, its commands carried out by an engine's servers."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.domain.accuracy import AccuracyTable
from slimsched.domain.batch import Batch
from slimsched.domain.block import Block
from slimsched.domain.cluster import GATEWAY
from slimsched.domain.request import NEVER_S, Request
from slimsched.domain.terms import ANY_TERMS, Terms
from slimsched.domain.timer import Wake, WakeAt
from slimsched.domain.width import SEGMENTS
from slimsched.errors import SlimError
from slimsched.execution.live.engine import Engine
from slimsched.execution.live.messages import (
    BatchDone,
    BlockGone,
    Forget,
    InputMissing,
    Ready,
    Sampled,
    TakeBlock,
    ToGateway,
)
from slimsched.routing.commands import Answer, Command, Drop, SendBlock
from slimsched.routing.events import (
    BlockDropped,
    Event,
    InputLost,
    RequestsArrived,
    RequestsCancelled,
    SegmentFinished,
    ServerDown,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.routing.gateway import Gateway
from slimsched.scheduling.commands import RunBatch
from slimsched.scheduling.events import BatchFinished, TelemetrySampled
from slimsched.telemetry.observer import GATEWAY_NAME, Observer


class DroppedError(SlimError):
    """A request was given up; the message says why."""


class Receipt(Struct, kw_only=True):
    """What a request was given: widths and servers by segment, and where its time and energy went."""

    widths: tuple[float, ...] = ()
    servers: list[str] = []
    reasons: list[str] = []
    queue_s: float = 0.0
    compute_s: float = 0.0
    energy_j: float = 0.0
    energy_source: str = ""
    latency_s: float = 0.0


class Classified(Struct, frozen=True, kw_only=True):
    """A request's logits and its receipt."""

    logits: NDArray[np.float32]
    receipt: Receipt


class _Open(Struct):
    """A request under way: its image, who waits for it, its receipt so far."""

    image: bytes
    waiter: "asyncio.Future[Classified]"
    receipt: Receipt
    arrival_s: float
    logits: NDArray[np.float32] | None = None


class LiveCluster:
    """Carries out the commands of a gateway in real time."""

    def __init__(
        self,
        gateway: Gateway,
        engine: Engine,
        observers: Sequence[Observer] = (),
        *,
        clock_zero_s: float | None = None,
        first_id: int = 0,
    ) -> None:
        self._gateway, self._engine, self._observers = gateway, engine, observers
        self._names = gateway.cluster.names
        self._open: dict[int, _Open] = {}
        self._next_id = first_id
        self._zero_s = monotonic() if clock_zero_s is None else clock_zero_s
        self._power_source = [""] * len(self._names)
        self.why_waiting: dict[str, dict[str, str]] = {}
        """What each server last said of batches that could not form."""

    @property
    def now_s(self) -> float:
        """Seconds since this cluster was made, on the host's monotonic clock."""
        return monotonic() - self._zero_s

    @property
    def in_system(self) -> int:
        """Requests taken in and neither answered nor dropped."""
        return len(self._open)

    @property
    def accuracy(self) -> AccuracyTable:
        """What each width tuple is worth."""
        return self._gateway.cluster.accuracy

    @property
    def any_alive(self) -> bool:
        """Whether any server takes work now."""
        return bool(self._gateway.seen.alive_ids)

    def is_alive(self, server: int) -> bool:
        """Whether a server takes work now."""
        return bool(self._gateway.seen.alive[server])

    @property
    def power_sources(self) -> str:
        """Where the servers' power figures come from."""
        return "; ".join(sorted({source for source in self._power_source if source}))

    def power_source(self, server: int) -> str:
        """Where one server's power figure comes from; empty before its first sample."""
        return self._power_source[server]

    async def start(self) -> None:
        """Bring the servers up; requests may come once this returns."""
        self._loop = asyncio.get_running_loop()
        for server in range(len(self._names)):
            self._tell(ServerDown(server=server))
        await self._engine.start(self)

    def submit(
        self, image: bytes, terms: Terms = ANY_TERMS, *, number: int = -1
    ) -> "asyncio.Future[Classified]":
        """Take one raw uint8 image in; `number` is its place in a known set."""
        return self.submit_many([image], terms, numbers=[number])[0]

    def submit_many(
        self, images: Sequence[bytes], terms: Terms = ANY_TERMS, *, numbers: Sequence[int] | None = None
    ) -> "list[asyncio.Future[Classified]]":
        """Take several images in at once, all on the same terms."""
        now_s, first = self.now_s, self._next_id
        self._next_id += len(images)
        requests = tuple(
            Request(
                id=first + n,
                arrival_s=now_s,
                deadline_s=min(NEVER_S, now_s + terms.deadline_s),
                min_accuracy=terms.min_accuracy,
                priority=terms.priority,
                image=-1 if numbers is None else numbers[n],
                width=terms.width,
                max_energy_j=terms.max_energy_j,
            )
            for n in range(len(images))
        )
        waiters = []
        for request, image in zip(requests, images, strict=True):
            waiter: asyncio.Future[Classified] = self._loop.create_future()
            waiters.append(waiter)
            self._open[request.id] = _Open(image, waiter, Receipt(servers=[], reasons=[]), now_s)
        self._tell(RequestsArrived(requests=requests))
        return waiters

    def cancel(self, waiters: "Sequence[asyncio.Future[Classified]]") -> None:
        """Give up those that are not answered yet."""
        if all(waiter.done() for waiter in waiters):
            return
        gone = {id(waiter) for waiter in waiters if not waiter.done()}
        numbers = tuple(number for number, one in self._open.items() if id(one.waiter) in gone)
        for number in numbers:
            self._open[number].waiter.cancel()
        self._tell(RequestsCancelled(requests=numbers))

    async def drain(self) -> None:
        """Wait until everything taken in is answered or dropped."""
        while waiting := [one.waiter for one in self._open.values() if not one.waiter.done()]:
            await asyncio.wait(waiting)

    async def stop(self) -> None:
        """Drain, then stop the servers."""
        await self.drain()
        await self._engine.stop()

    def server_up(self, server: int) -> None:
        """The engine says a server takes work."""
        self._tell(ServerUp(server=server))

    def server_down(self, server: int) -> None:
        """The engine says a server is gone."""
        self._tell(ServerDown(server=server))

    def server_leaving(self, server: int) -> None:
        """The engine says a server wants no more work."""
        self._tell(ServerLeaving(server=server))

    def received(self, server: int, message: ToGateway) -> None:
        """A server says something."""
        match message:
            case BatchDone():
                self._batch_done(server, message)
            case BlockGone(block=block, reason=reason):
                self._tell(BlockDropped(server=server, block=block, reason=reason))
            case InputMissing(block=block):
                self._tell(InputLost(server=server, block=block))
            case Sampled(snapshot=snapshot, power_source=source, waiting=waiting):
                self._power_source[server] = source
                self.why_waiting[self._names[server]] = waiting
                sample = TelemetrySampled(
                    utilization=snapshot.utilization, power_w=snapshot.power_w, vram_bytes=snapshot.vram_bytes
                )
                self._observe(self._names[server], sample, [])
                self._tell(TelemetryReceived(server=server, snapshot=snapshot))
            case Ready():
                pass  # the engine has told us by server_up
            case _:
                assert_never(message)

    def _tell(self, event: Event) -> None:
        """Feed the gateway one event and carry its commands out."""
        now_s = self.now_s
        commands = self._gateway.handle(event, now_s=now_s)
        for command in commands:
            self._carry_out(command, now_s)
        for observer in self._observers:
            observer.observe(now_s, GATEWAY_NAME, event, commands)

    def _carry_out(self, command: Command, now_s: float) -> None:
        match command:
            case SendBlock(server=server, block=block, source=source, reason=reason):
                self._send(server, block, source, reason)
            case Answer(requests=requests):
                for request in requests:
                    self._answer(request, now_s)
            case Drop(requests=requests, reason=reason):
                for request in requests:
                    self._drop(request, reason)
            case WakeAt(at_s=at_s):
                self._loop.call_later(max(0.0, at_s - self.now_s), self._tell, Wake())
            case _:
                assert_never(command)

    def _send(self, server: int, block: Block, source: int, reason: str) -> None:
        for request in block.requests:
            said = self._open[request.id].receipt.reasons
            del said[block.key.segment :]
            said += [reason] * (1 + len(block.ahead))
        images, peer = b"", ""
        if source == GATEWAY:
            images = b"".join([self._open[request.id].image for request in block.requests])
        elif source != server:
            peer = self._engine.peer_address(source)
        self._engine.send(server, TakeBlock(block=block, images=images, peer=peer))

    def _batch_done(self, server: int, message: BatchDone) -> None:
        """Note what the batch gave each request, then let the gateway move them on."""
        size = sum(len(block.requests) for block in message.blocks)
        last = message.blocks[0].key.segment == SEGMENTS - 1
        logits = np.frombuffer(message.logits, np.float32).reshape(size, -1) if last else None
        row = 0
        for block, queue_s in zip(message.blocks, message.queue_s, strict=True):
            for request in block.requests:
                one = self._open.get(request.id)
                if one is not None:
                    receipt = one.receipt
                    del receipt.servers[request.segment :]
                    receipt.servers.append(self._names[server])
                    receipt.queue_s += queue_s
                    receipt.compute_s += message.busy_s
                    receipt.energy_j += message.energy_j / size
                    if logits is not None:
                        one.logits = logits[row]
                row += 1
        self._observe_batch(server, message, size)
        self._tell(SegmentFinished(server=server, width=message.width, blocks=tuple(message.blocks)))

    def _answer(self, request: Request, now_s: float) -> None:
        one = self._open.pop(request.id)
        receipt = one.receipt
        receipt.widths = request.widths
        receipt.latency_s = now_s - one.arrival_s
        receipt.energy_source = self.power_sources
        assert one.logits is not None
        if not one.waiter.done():
            one.waiter.set_result(Classified(logits=one.logits, receipt=receipt))

    def _drop(self, request: Request, reason: str) -> None:
        one = self._open.pop(request.id)
        for server in range(len(self._names)) if request.widths else ():
            self._engine.send(server, Forget(requests=[request.id]))
        if not one.waiter.done():
            one.waiter.set_exception(DroppedError(reason))

    def _observe_batch(self, server: int, message: BatchDone, size: int) -> None:
        """Let observers see a server's batch as they would in its own log."""
        if not self._observers:
            return
        key, blocks = message.blocks[0].key, tuple(message.blocks)
        batch = Batch(id=0, key=key, instance=0, blocks=blocks, size=size)
        done = BatchFinished(instance=0, busy_s=message.busy_s, energy_j=message.energy_j)
        self._observe(self._names[server], done, [RunBatch(batch=batch, why="")])

    def _observe(self, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        for observer in self._observers:
            observer.observe(self.now_s, machine, event, commands)
