"""The express line of gRPC: calls with known heads are read without Python.

A thread of its own (`express_grpc.cpp`) speaks HTTP/2. It compares the headers of each call that matter,
and the bytes of its message before the tensors, with those it has learnt. It gives every other call to the
methods of the server, as a context with the few methods that they use.

Where the compiled part or its library is missing, with TLS, and with SLIM_PURE=1 in the environment, the gRPC
library serves all calls.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from slimsched.core.config import SlimError
from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.call import Call
from slimsched.serving.api.desk import Desk
from slimsched.serving.api.express_line import ExpressLine
from slimsched.serving.api.grpc_answer import before_raw, write_answer, write_around
from slimsched.serving.api.grpc_context import (
    FINE,
    MESSAGE,
    OPENS,
    PREFIX_BYTES,
    CallEndedError,
    GrpcContext,
    Metadata,
    framed,
    written_head,
    written_status,
)
from slimsched.serving.api.grpc_message import raw_layout
from slimsched.serving.api.known_head import AnswerForm, is_plain_call
from slimsched.serving.api.receipt import InferenceResult
from slimsched.serving.api.refusal import RefusalError, TooMany, retry_of

if TYPE_CHECKING:
    from slimsched.serving.api._compiled_line import Notice

try:
    from slimsched.serving.api import _express_grpc
except ImportError:  # not compiled here, or without its library
    is_available = False
else:
    is_available = not os.environ.get("SLIM_PURE")

log = logging.getLogger("slim.grpc")

LARGEST_BYTES = 2**20
"""The largest request that is worth it: with larger ones, most time goes into their bytes."""

Method = Callable[[Any, Any], Awaitable[bytes | None]]
"""Serves one call, as the gRPC library calls it; a stream returns nothing."""


class GrpcExpress(ExpressLine):
    """The line of gRPC: serves the methods with these paths."""

    protocol, form = "grpc", AnswerForm(write_around, before_raw)
    fine, left, too_many = "OK", "CANCELLED", TooMany.grpc_code

    def __init__(
        self, desk: Desk, link: BundleLink, methods: Mapping[str, Method], sockets: Sequence[socket.socket]
    ) -> None:
        self._methods = methods
        self._calls: dict[int, GrpcContext] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._native = _express_grpc.Express([one.fileno() for one in sockets])
        super().__init__(self._native, desk, link, sockets)

    # -- heads

    def forget(self) -> None:
        """Forget all heads: models or limits have changed."""
        super().forget()
        limits = self._desk.limits
        self._native.limit_calls(
            self._longest_bytes,
            limits.calls,
            limits.unread_bytes,
            limits.head_bytes,
            limits.headers,
            limits.sending_s,
            limits.head_s,
        )

    @property
    def _longest_bytes(self) -> int:
        return 2 * self._desk.limits.body_bytes

    def learn(self, headers: Metadata, raw: bytes, call: Call) -> None:
        """Learn the head of a call that was read, if it can be known."""
        if len(raw) > LARGEST_BYTES or not is_plain_call(call):
            return
        if (found := raw_layout(raw, self._desk, call.face)) is None:
            return
        text_bytes, layout, fixed = found
        head, text = written_head(headers), framed(raw)[: PREFIX_BYTES + text_bytes]
        if self._is_to_learn(head, text):
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

    def _take_notice(self, notice: "Notice") -> None:
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
