"""The live cluster: the same gateway as simulated, its commands carried out by an engine's servers."""

import asyncio
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import assert_never

import numpy as np

from slimsched.kernel.errors import SlimError
from slimsched.kernel.observer import Observer
from slimsched.kernel.wake import Wake, WakeAt
from slimsched.models.accuracy import AccuracyTable
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.cancellation import RequestsCancelled
from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.machine import GATEWAY_NAME
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.domain.terms import ANY_TERMS, Terms
from slimsched.serving.execution.live.engine import Engine
from slimsched.serving.execution.live.messages import (
    BatchDone,
    Ready,
    TakeBlock,
    ToGateway,
)
from slimsched.serving.execution.live.parcel import Classified, Parcel
from slimsched.serving.execution.scaling import LOOK_S, Fleet, Scaling
from slimsched.serving.routing.autoscaler import AutoscaleOptions, load_of
from slimsched.serving.routing.commands import Answer, Command, Drop, Forget, RecallRequests, SendBlock
from slimsched.serving.routing.events import (
    BlockDropped,
    Event,
    GoalChanged,
    InputLost,
    RequestsArrived,
    SegmentFinished,
    ServerDown,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.routing.gateway import Gateway
from slimsched.serving.routing.goal import Goal


class DroppedError(SlimError):
    """A request was given up; `reason` says why, the message also with what detail."""

    def __init__(self, reason: DropReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


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
        self._open: dict[int, Parcel] = {}  # by request
        self._arrived: list[Request] = []  # that the gateway has not been told of yet
        self._next_id = first_id
        self._zero_s = monotonic() if clock_zero_s is None else clock_zero_s
        self._power_source = [""] * len(self._names)
        self.power_sources = ""
        """Where the servers' power figures come from."""
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

    def power_source(self, server: int) -> str:
        """Where one server's power figure comes from; empty before its first sample."""
        return self._power_source[server]

    async def start(self) -> None:
        """Bring the servers up; requests may come once this returns."""
        self._loop = asyncio.get_running_loop()
        for server in range(len(self._names)):
            self._tell(ServerDown(server=server))
        await self._engine.start(self)

    def submit(self, images: bytes | memoryview, terms: Terms = ANY_TERMS, *, count: int = 1) -> Parcel:
        """Take a call in: so many raw uint8 images, one behind the other; the answer is to be awaited."""
        now_s = self.now_s
        parcel = self._parcel(images, count, now_s)
        self._arrive([_request(number, -1, terms, now_s) for number in parcel.requests])
        return parcel

    def submit_each(
        self, images: Sequence[bytes], terms: Terms = ANY_TERMS, *, numbers: Sequence[int] | None = None
    ) -> list[Parcel]:
        """Take several calls of one image in at once; `numbers` are the images' places in a known set."""
        now_s = self.now_s
        parcels = [self._parcel(image, 1, now_s) for image in images]
        requests = [
            _request(parcel.first, number, terms, now_s)
            for parcel, number in zip(parcels, numbers or [-1] * len(parcels), strict=True)
        ]
        self._arrive(requests)
        return parcels

    def _arrive(self, requests: list[Request]) -> None:
        """Tell the gateway in the event loop's next round: calls that come in one round are told together."""
        if requests and not self._arrived:
            self._loop.call_soon(self._tell_arrived)
        self._arrived += requests

    def _tell_arrived(self) -> None:
        arrived, self._arrived = tuple(self._arrived), []
        self._tell(RequestsArrived(requests=arrived))

    def _parcel(self, images: bytes | memoryview, count: int, now_s: float) -> Parcel:
        waiter: asyncio.Future[Classified] = self._loop.create_future()
        parcel = Parcel(self._next_id, memoryview(images), count, now_s, waiter)
        self._next_id += count
        self._open.update(dict.fromkeys(parcel.requests, parcel))
        return parcel

    def cancel(self, parcel: Parcel) -> None:
        """Give up what is not answered yet; nobody waits for it."""
        parcel.waiter.cancel()
        if open_ := tuple(number for number in parcel.requests if number in self._open):
            self._tell(RequestsCancelled(requests=open_))

    async def drain(self) -> None:
        """Wait until everything taken in is answered or dropped."""
        while waiting := {one.waiter for one in self._open.values() if not one.waiter.done()}:
            await asyncio.wait(waiting)

    async def stop(self) -> None:
        """Drain, then stop the servers."""
        await self.drain()
        await self._engine.stop()

    async def scale_forever(self, options: AutoscaleOptions, fleet: Fleet) -> None:
        """Let an autoscaler look at the load every now and then, and start and stop servers as it asks."""
        scaling = Scaling(options, fleet, lambda: load_of(self._gateway), self._observers)
        while True:
            await asyncio.sleep(LOOK_S)
            scaling.look(self.now_s)

    def set_goal(self, goal: Goal) -> None:
        """Give the router another goal."""
        self._tell(GoalChanged(goal=goal))

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
            case BatchDone(finished=finished, logits=logits):
                self._note_batch(finished, logits)
                self._tell(finished)
            case TelemetryReceived(snapshot=snapshot):
                if snapshot.power_source != self._power_source[server]:
                    self._power_source[server] = snapshot.power_source
                    self.power_sources = "; ".join(sorted({one for one in self._power_source if one}))
                self.why_waiting[self._names[server]] = snapshot.waiting
                self._tell(message)
            case BlockDropped() | InputLost():
                self._tell(message)
            case Ready():
                pass  # the engine has told us by server_up
            case _:
                assert_never(message)

    def _tell(self, event: Event) -> None:
        """Feed the gateway one event, let observers see what it decided, then carry that out."""
        now_s = self.now_s
        commands = self._gateway.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, GATEWAY_NAME, event, commands)
        for command in commands:
            self._carry_out(command, now_s)

    def _carry_out(self, command: Command, now_s: float) -> None:
        match command:
            case SendBlock(server=server, block=block, source=source, reason=reason):
                self._send(server, block, source, reason)
            case Answer(requests=requests):
                self._answer(requests, now_s)
            case Drop(requests=requests, reason=reason, detail=detail):
                for request in requests:
                    self._drop(request, DroppedError(reason, detail))
            case RecallRequests(server=server) | Forget(server=server):
                self._engine.send(server, command)
            case WakeAt(at_s=at_s):
                self._loop.call_later(max(0.0, at_s - self.now_s), self._tell, Wake())
            case _:
                assert_never(command)

    def _send(self, server: int, block: Block, source: int, reason: str) -> None:
        images: list[memoryview] = []
        segment, peer = block.key.segment, ""
        for _, parcel, start, end in self._stretches(block.requests):
            for receipt in parcel.receipts(start, end):
                receipt.reasons = (*receipt.reasons[:segment], *[reason] * len(block.key.legs))
            if source == GATEWAY:
                images.append(parcel.images(start, end))
        if source != server and source != GATEWAY:
            peer = self._engine.peer_address(source)
        self._engine.send(server, TakeBlock(block=block, images=b"".join(images), peer=peer))

    def _note_batch(self, finished: SegmentFinished, raw: bytes) -> None:
        """Write on each request's receipt what the batch gave it."""
        segment, images = finished.blocks[0].key.segment, finished.images
        logits = np.frombuffer(raw, np.float32).reshape(images, -1) if raw else None
        servers = (self._names[finished.server],) * (1 + len(finished.ahead))
        energy_j, before = finished.energy_j / images, 0
        for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
            for row, parcel, start, end in self._stretches(block.requests):
                for receipt in parcel.receipts(start, end):
                    receipt.servers = (*receipt.servers[:segment], *servers)
                    receipt.queue_s += queue_s
                    receipt.compute_s += finished.busy_s
                    receipt.energy_j += energy_j
                if logits is not None:
                    parcel.put_logits(start, logits[before + row : before + row + end - start])
            before += len(block.requests)

    def _answer(self, requests: tuple[Request, ...], now_s: float) -> None:
        for row, parcel, start, end in self._stretches(requests):
            for receipt in parcel.receipts(start, end):
                receipt.widths = requests[row].widths
                receipt.latency_s = now_s - parcel.arrival_s
                receipt.energy_source = self.power_sources
            for request in requests[row : row + end - start]:
                del self._open[request.id]
            parcel.answered(end - start)

    def _stretches(self, requests: Sequence[Request]) -> Iterator[tuple[int, Parcel, int, int]]:
        """Neighbours of one parcel: where they begin among these requests, the parcel, from and to there."""
        row, count = 0, len(requests)
        while row < count:
            first = requests[row].id
            parcel = self._open.get(first)
            if parcel is None:  # answered or dropped before: a stale report
                row += 1
                continue
            start = first - parcel.first
            most = min(count - row, parcel.count - start)
            length = 1
            while length < most and requests[row + length].id == first + length:
                length += 1
            yield row, parcel, start, start + length
            row += length

    def _drop(self, request: Request, error: DroppedError) -> None:
        one = self._open.pop(request.id)
        if not one.waiter.done():
            one.waiter.set_exception(error)


def _request(number: int, image: int, terms: Terms, now_s: float) -> Request:
    return Request(
        id=number,
        arrival_s=now_s,
        deadline_s=min(NEVER_S, now_s + terms.deadline_s),
        min_accuracy=terms.min_accuracy,
        priority=terms.priority,
        image=image,
        width=terms.width,
        max_energy_j=terms.max_energy_j,
    )
