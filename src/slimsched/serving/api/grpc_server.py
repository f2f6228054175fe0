"""The gRPC server: the same desk and refusals as over HTTP, with protocol buffers instead of JSON."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

import grpc

from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.call import Call
from slimsched.serving.api.desk import Desk, ModelsChangedError
from slimsched.serving.api.express_grpc import GrpcExpress, is_available
from slimsched.serving.api.express_sockets import listen
from slimsched.serving.api.grpc_answer import write_answer
from slimsched.serving.api.grpc_library import GrpcLibrary
from slimsched.serving.api.grpc_message import read_call, read_parsed_call
from slimsched.serving.api.grpc_pages import Headers, RawMethod
from slimsched.serving.api.grpc_reading import GrpcReading
from slimsched.serving.api.grpc_stream import GrpcStreams
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import RefusalError, retry_of
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.token import Token

log = logging.getLogger("slim.grpc")

SERVICE = "inference.GRPCInferenceService"


class GrpcServer:
    """Answers inference calls at a desk; `others` answers the other methods."""

    def __init__(
        self,
        desk: Desk,
        others: Mapping[str, RawMethod],
        *,
        token: str = "",
        link: BundleLink | None = None,
    ) -> None:
        """Calls whose heads are known go over the link, in bundles, where that is possible."""
        self._desk, self._token, self._link = desk, Token(token), link
        self._reading = GrpcReading(desk.ledger, desk.limits)
        self._streams = GrpcStreams(desk, self._reading, self._token, self._infer_parsed)
        methods = {**others, "ModelInfer": self._model_infer}
        self._unary = {name: self._guarded(name, method) for name, method in methods.items()}
        self._library: GrpcLibrary | None = None
        self._express: GrpcExpress | None = None

    async def start(self, host: str, port: int, credentials: Any = None, *, shares_port: bool = False) -> int:
        """Start to listen and return the port; port 0 picks a free one. Other processes may share it."""
        if self._link is None or credentials is not None or not is_available:
            return await self._start_library(f"{host}:{port}", credentials, shares_port)
        sockets = listen(host, port, shares_port=shares_port)
        methods = {**self._unary, "ModelStreamInfer": self._streams.serve}
        paths = {f"/{SERVICE}/{name}": method for name, method in methods.items()}
        self._express = GrpcExpress(self._desk, self._link, paths, sockets)
        return int(sockets[0].getsockname()[1])

    async def start_unix(self, address: str) -> None:
        """Start to listen at unix:PATH, for processes of this server."""
        await self._start_library(address, None, shares_port=False)

    async def _start_library(self, address: str, credentials: Any, shares_port: bool) -> int:
        """Let the gRPC library read the calls."""
        longest_bytes = self._reading.longest_bytes
        self._library = GrpcLibrary(self._desk.limits, longest_bytes, shares_port=shares_port)
        self._library.add(SERVICE, self._unary, {"ModelStreamInfer": self._streams.serve})
        return await self._library.start(address, credentials)

    async def stop(self) -> None:
        """Refuse new calls and let the calls under way finish, in a limited time."""
        self._streams.stop()
        if self._library is not None:
            await self._library.stop(self._desk.limits.drain_s)
        if self._express is not None:
            await self._express.stop(self._desk.limits.drain_s)
            self._express.abort()

    async def abort(self) -> None:
        """End all calls at once."""
        if self._library is not None:
            await self._library.stop(None)
        if self._express is not None:
            self._express.abort()

    def models_changed(self) -> None:
        """Read heads anew: they may mean something else now."""
        if self._express is not None:
            self._express.forget()

    def _guarded(self, name: str, method: RawMethod) -> Callable[[Any, Any], Awaitable[Any]]:
        """Wrap a method: check the token, read the message, turn refusals into status codes."""
        kind = "infer" if name == "ModelInfer" else "other"
        is_counted = kind == "infer" or not self._desk.passes_on
        ledger, account = self._desk.ledger, self._reading.account

        async def call(_: Any, context: Any) -> Any:
            began_s, code, size, why = monotonic(), "CANCELLED", 0, ""
            try:
                headers: Headers = tuple(context.invocation_metadata() or ())
                if name not in ("ServerLive", "ServerReady"):
                    self._token.check(str(dict(headers).get("authorization", "")), "metadata authorization")
                limits = self._desk.limits
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
                log.exception("%s failed", name)
            finally:
                ledger.hold(account, -size)
                if is_counted:
                    self._desk.tally.count_response("grpc", kind, code, monotonic() - began_s)
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
        return await self._infer(partial(self._read_and_learn, headers), [raw])

    def _read_and_learn(self, headers: Headers, raw: bytes, desk: Desk, loan: Loan) -> Call:
        call = read_call(raw, desk, loan)
        if self._express is not None:
            self._express.learn(headers, raw, call)
        return call

    async def _infer_parsed(self, messages: list[Any]) -> bytes:
        """Answer the request in the list; it is taken out as soon as it is not needed any more."""
        return await self._infer(read_parsed_call, messages)

    async def _infer(self, read: Callable[[Any, Desk, Loan], Call], messages: list[Any]) -> bytes:
        desk = self._desk
        while True:
            with Loan(desk) as loan:
                call = read(messages[0], desk, loan)
                if not desk.passes_on:
                    messages.clear()  # the call has the tensors
                try:
                    return write_answer(call, await desk.infer(call))
                except ModelsChangedError:  # the model was replaced meanwhile: read the call again
                    continue
