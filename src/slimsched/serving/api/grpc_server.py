"""The gRPC server: the same service and refusals as over HTTP, with protocol buffers instead of JSON."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import prod
from time import monotonic
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from slimsched.models.arrays import NUMPY
from slimsched.serving.api.call import (
    Call,
    RequestedOutput,
    check_answer,
    check_id,
    check_inputs,
    check_outputs,
    read_terms,
)
from slimsched.serving.api.grpc_reading import GrpcReading
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.api.refusal import BadRequest, NotFound, RefusalError, Unauthenticated
from slimsched.serving.api.repository import RepositoryControl, switched_off
from slimsched.serving.api.repository_request import version_of
from slimsched.serving.api.request_parameters import Parameter, read_parameters
from slimsched.serving.api.service import InferenceResult, InferenceService
from slimsched.serving.api.tensor import bytes_tensor, check_tensor, read_bytes
from slimsched.serving.api.token import Token

log = logging.getLogger("slim.grpc")
pb: Any = inference_pb2  # mypy cannot see its classes: they are built at import

Method = Callable[[Any], Awaitable[Any]]


class GrpcServer:
    """Serves one InferenceService over gRPC."""

    def __init__(
        self, service: InferenceService, *, token: str = "", repository: RepositoryControl | None = None
    ) -> None:
        self._service, self._token, self._repository = service, Token(token), repository
        limits = service.limits
        self._reading = GrpcReading(service.ledger, limits)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._reading.longest_bytes),
                ("grpc.max_concurrent_streams", limits.calls),
                ("grpc.http2.bdp_probe", 0),  # it lets each call send megabytes before its turn to be read
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", int(1e3 * limits.idle_s)),
            ],
            maximum_concurrent_rpcs=limits.calls,
        )
        methods: dict[str, tuple[Method, Any]] = {
            "ServerLive": (self._server_live, pb.ServerLiveRequest),
            "ServerReady": (self._server_ready, pb.ServerReadyRequest),
            "ModelReady": (self._model_ready, pb.ModelReadyRequest),
            "ServerMetadata": (self._server_metadata, pb.ServerMetadataRequest),
            "ModelMetadata": (self._model_metadata, pb.ModelMetadataRequest),
            "ModelInfer": (self._model_infer, pb.ModelInferRequest),
            "RepositoryIndex": (self._repository_index, pb.RepositoryIndexRequest),
            "RepositoryModelLoad": (self._repository_load, pb.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (self._repository_unload, pb.RepositoryModelUnloadRequest),
        }
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(  # the same on the wire, but we read the message
                self._guarded(name, method, kind),
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (method, kind) in methods.items()
        }
        generic = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self._server.add_generic_rpc_handlers((generic,))

    async def start(self, host: str, port: int, credentials: Any = None) -> int:
        """Start to listen and return the port; port 0 picks a free one."""
        address = f"{host}:{port}"
        if credentials is None:
            bound = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(bound)

    async def stop(self) -> None:
        """Refuse new calls and let the calls under way finish, in a limited time."""
        await self._server.stop(grace=self._service.limits.drain_s)

    async def abort(self) -> None:
        """End all calls at once."""
        await self._server.stop(grace=None)

    def _guarded(self, name: str, method: Method, message: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        """Wrap a method: check the token, parse the message, turn refusals into status codes."""
        kind = "infer" if name == "ModelInfer" else "other"
        ledger, account = self._service.ledger, self._reading.account

        async def call(_: Any, context: Any) -> Any:
            began_s, code, size, why = monotonic(), "CANCELLED", 0, ""
            try:
                if name not in ("ServerLive", "ServerReady"):
                    self._authenticate(context)
                limits = self._service.limits
                raw = await self._reading.read(context, limits, is_large=kind == "infer")
                size = len(raw)
                ledger.hold(account, size)
                request = [_parse(raw, message)]
                del raw
                answer = await method(request.pop())  # popped: kept no longer than the method needs it
                self._limit_sending(limits)
                code = "OK"
                return answer
            except RefusalError as refusal:
                code, why = refusal.grpc_code, str(refusal)
                _set_retry(context, refusal)
            except Exception:
                code, why = "INTERNAL", "an unexpected failure; see the server's log"
                log.exception("%s failed", name)
            finally:
                ledger.hold(account, -size)
                self._service.tally.count_response("grpc", kind, code, monotonic() - began_s)
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

    def _authenticate(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not self._token.is_in(str(given)):
            raise Unauthenticated("a token is required; send the metadata authorization: Bearer TOKEN")

    async def _server_live(self, request: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(self, request: Any) -> Any:
        return pb.ServerReadyResponse(ready=self._service.is_ready)

    async def _model_ready(self, request: Any) -> Any:
        try:
            self._service.face(request.name, request.version)
        except NotFound:  # as Triton answers: a model that is not there is not ready
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._service.is_ready)

    async def _server_metadata(self, request: Any) -> Any:
        return pb.ServerMetadataResponse(**self._service.server_metadata())

    async def _model_metadata(self, request: Any) -> Any:
        face = self._service.face(request.name, request.version)
        return pb.ModelMetadataResponse(**face.metadata())

    async def _repository_index(self, request: Any) -> Any:
        models = self._opened().index(ready=request.ready)
        return pb.RepositoryIndexResponse(models=models)

    async def _repository_load(self, request: Any) -> Any:
        control = self._opened()
        parameters: dict[str, Any] = {name: _value(one) for name, one in request.parameters.items()}
        await control.load(request.model_name, version_of(parameters))
        return pb.RepositoryModelLoadResponse()

    async def _repository_unload(self, request: Any) -> Any:
        await self._opened().unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _opened(self) -> RepositoryControl:
        if self._repository is None:
            raise switched_off()
        return self._repository

    async def _model_infer(self, request: Any) -> Any:
        call = read_call(request, self._service)
        del request  # it has copies of the tensors
        return write_answer(call, await self._service.infer(call))


def _set_retry(context: Any, refusal: RefusalError) -> None:
    if refusal.retry_after_s is not None:
        context.set_trailing_metadata((("retry-after", f"{max(1, round(refusal.retry_after_s))}"),))


def _parse(raw: bytes, message: Any) -> Any:
    try:
        return message.FromString(raw)
    except DecodeError as error:
        raise BadRequest(f"the bytes are not a {message.DESCRIPTOR.name}: {error}") from None


CONTENTS = {
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}
"""Where a tensor's numbers are when they are not raw; smaller integers share a field by their sign."""


def read_call(request: Any, service: InferenceService) -> Call:
    """Read the call from a ModelInferRequest, whose tensors are raw bytes or typed contents."""
    face = service.face(request.model_name, request.model_version)
    check_id(request.id)
    check_inputs(face, [one.name for one in request.inputs])
    raws = list(request.raw_input_contents)
    if raws and len(raws) != len(request.inputs):
        raise BadRequest(f"{len(raws)} raw inputs for {len(request.inputs)} inputs; send one for each")
    tensors: dict[str, memoryview] = {}
    counts: set[int] = set()
    for place, one in enumerate(request.inputs):
        tensor, shape = face.inputs[one.name], tuple(one.shape)
        counts.add(check_tensor(tensor, one.datatype, shape, service.limits.examples_per_request))
        raw = raws[place] if raws else _contents(one, prod(shape))
        tensors[one.name] = read_bytes(tensor, raw, one.datatype, shape).data.cast("B")
    if len(counts) > 1:
        raise BadRequest(f"inputs have {sorted(counts)} rows; give all the same number")
    requested = [RequestedOutput(name=output.name, binary=True) for output in request.outputs]
    outputs, count = check_outputs(face, requested, binary=True), counts.pop()
    check_answer(face, outputs, count, service.limits.answer_bytes)
    parameters = read_parameters({name: _value(value) for name, value in request.parameters.items()})
    return Call(
        id=request.id,
        face=face,
        inputs=tuple(tensors[name] for name in face.inputs),
        count=count,
        terms=read_terms(face, parameters),
        outputs=outputs,
    )


def _contents(one: Any, count: int) -> bytes:
    """The given number of numbers of a tensor that are not raw, as raw bytes."""
    unsigned = one.datatype.startswith("UINT")
    field = CONTENTS.get(one.datatype, "uint_contents" if unsigned else "int_contents")
    given = getattr(one.contents, field)
    if len(given) != count:
        raise BadRequest(f"input '{one.name}': {len(given)} numbers in {field}, but its shape takes {count}")
    values: NDArray[Any] = np.array(given)
    kind = NUMPY[one.datatype]
    if kind.kind in "iu" and values.size:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        if values.min() < low or values.max() > high:
            raise BadRequest(f"input '{one.name}': {one.datatype} takes whole numbers from {low} to {high}")
    return values.astype(kind).tobytes()


def write_answer(call: Call, answered: InferenceResult) -> Any:
    """Return the result as a ModelInferResponse with raw tensors."""
    face = call.face
    response = pb.ModelInferResponse(model_name=face.name, model_version=face.version, id=call.id)
    for name, value in answered.parameters.items():
        _set(response.parameters[name], value)
    for one in call.outputs:
        kind, values = face.tensor(one.name, answered.outputs)
        shape = [len(values)] if isinstance(values, list) else list(values.shape)
        response.outputs.add(name=one.name, datatype=kind, shape=shape)
        raw = bytes_tensor(values) if isinstance(values, list) else values.tobytes()
        response.raw_output_contents.append(raw)
    return response


def _value(parameter: Any) -> Parameter:
    kind = parameter.WhichOneof("parameter_choice")
    value: Parameter = getattr(parameter, kind) if kind else ""
    return value


def _set(parameter: Any, value: Parameter) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(parameter, kinds[type(value)], value)
