"""The gRPC server: the same desk and refusals as over HTTP, with protocol buffers instead of JSON."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

import grpc

from slimsched.serving.api.call import Call
from slimsched.serving.api.desk import Desk, ModelsChangedError
from slimsched.serving.api.grpc_answer import write_answer
from slimsched.serving.api.grpc_message import read_call, read_parsed_call
from slimsched.serving.api.grpc_pages import Headers, RawMethod
from slimsched.serving.api.grpc_reading import GrpcReading
from slimsched.serving.api.grpc_stream import GrpcStreams
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import RefusalError
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.token import Token

log = logging.getLogger("slim.grpc")

SERVICE = "inference.GRPCInferenceService"


class GrpcServer:
    """Answers inference calls at a desk; `others` answers the other methods.

    With `shares_port`, other processes may listen at the same port.
    """

    def __init__(
        self, desk: Desk, others: Mapping[str, RawMethod], *, token: str = "", shares_port: bool = False
    ) -> None:
        self._desk, self._token = desk, Token(token)
        limits = desk.limits
        self._reading = GrpcReading(desk.ledger, limits)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._reading.longest_bytes),
                ("grpc.max_concurrent_streams", limits.calls),
                ("grpc.http2.bdp_probe", 0),  # it lets each call send megabytes before its turn to be read
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", int(1e3 * limits.idle_s)),
                ("grpc.so_reuseport", int(shares_port)),
            ],
            maximum_concurrent_rpcs=limits.calls,
        )
        methods = {**others, "ModelInfer": self._model_infer}
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(  # the same on the wire, but we read the message
                self._guarded(name, method)
            )
            for name, method in methods.items()
        }
        self._streams = GrpcStreams(desk, self._reading, self._token, self._infer_parsed)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._streams.serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, address: str, credentials: Any = None) -> int:
        """Start to listen at host:port, or at unix:PATH; return the port. Port 0 picks a free one."""
        if credentials is None:
            bound = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(bound)

    async def stop(self) -> None:
        """Refuse new calls and let the calls under way finish, in a limited time."""
        self._streams.stop()
        await self._server.stop(grace=self._desk.limits.drain_s)

    async def abort(self) -> None:
        """End all calls at once."""
        await self._server.stop(grace=None)

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
                _set_retry(context, refusal)
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
        within_s = limits.grace_s + limits.answer_bytes / limits.pace_bytes_per_s / 16
        timer = asyncio.get_running_loop().call_later(within_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())

    async def _model_infer(self, raw: bytes, _: Headers) -> bytes:
        return await self._infer(read_call, [raw])

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


def _set_retry(context: Any, refusal: RefusalError) -> None:
    if refusal.retry_after_s is not None:
        context.set_trailing_metadata((("retry-after", f"{max(1, round(refusal.retry_after_s))}"),))
