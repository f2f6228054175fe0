"""ModelStreamInfer: many inference requests over one gRPC call, answered as they are ready.

A stream may have a limited number of requests under way. It reads no more meanwhile, so that a client which
sends faster is held up by gRPC's flow control. gRPC does not tell an idle stream from one whose next message
arrives slowly, and keeps what has arrived; so the number of streams is limited too, and idle ones are ended.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any
from urllib.parse import unquote

import grpc

from slimsched.serving.api.call import LONGEST_ID
from slimsched.serving.api.desk import Desk
from slimsched.serving.api.grpc_message import parse, pb
from slimsched.serving.api.grpc_reading import GrpcReading
from slimsched.serving.api.ledger import network_of
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import RefusalError, TooLate, TooMany, Unavailable
from slimsched.serving.api.token import Token

log = logging.getLogger("slim.grpc")

Infer = Callable[[list[Any]], Awaitable[bytes]]
"""Answers the request in the list, which it may clear once it has a copy; it may raise refusals."""


def address_of(peer: str) -> str:
    """Return a client's address; gRPC writes peers as in ipv4:127.0.0.1:5000 and ipv6:%5B::1%5D:5000."""
    kind, _, rest = unquote(peer).partition(":")
    return network_of(rest.rpartition(":")[0].strip("[]")) if kind in ("ipv4", "ipv6") else ""


class GrpcStreams:
    """All streams of a server."""

    def __init__(self, desk: Desk, reading: GrpcReading, token: Token, infer: Infer) -> None:
        self.desk, self.reading, self.infer = desk, reading, infer
        self._token = token
        self._open: Counter[str] = Counter()  # by the client's address
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Take no more requests; streams end once those under way are answered."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def serve(self, _: Any, context: Any) -> None:
        """Serve one stream, as gRPC calls it."""
        address = address_of(context.peer())
        self._open[address] += 1
        try:
            metadata = dict(context.invocation_metadata() or ())
            self._token.check(str(metadata.get("authorization", "")), "metadata authorization")
            most = self.desk.limits.streams
            share = most if address in self.desk.ledger.proxies else -(-most // 2)
            if self._open.total() > most or self._open[address] > share:
                where, limit = ("", most) if self._open.total() > most else (" from this address", share)
                raise TooMany(
                    f"{limit} streams are open{where}, which is the limit; use ModelInfer, or try again", 1.0
                )
            await _Stream(self, context).run()
            return
        except RefusalError as refusal:
            code, why = refusal.grpc_code, str(refusal)
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
        return self._streams.desk.limits  # they follow the models

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
        desk, reading = self._streams.desk, self._streams.reading
        began_s, code, size = monotonic(), "CANCELLED", 0
        answer = pb.ModelStreamInferResponse()
        try:
            reading.check(messages[0], self._limits)
            size = len(messages[0])
            desk.ledger.hold(reading.account, size)
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
            desk.ledger.hold(reading.account, -size)
            desk.tally.count_response("grpc", "infer", code, monotonic() - began_s)
        await self._write(answer.SerializeToString())

    async def _write(self, raw: bytes) -> None:
        """Send an answer; end the stream if its client does not read it in time, or is gone."""
        try:
            async with asyncio.timeout(self._limits.sending_s), self._turn_to_write:
                await self._context.write(raw)
        except Exception:
            self._task.cancel()
