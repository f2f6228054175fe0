"""The gRPC server: the same service and refusals as over HTTP, with protocol buffers instead of JSON."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from slimsched.serving.api.call import (
    MODEL,
    VERSION,
    Call,
    Parameter,
    RequestedOutput,
    check_model,
    check_outputs,
    check_shape,
    read_terms,
)
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.api.refusal import BadRequest, RefusalError, Unauthenticated
from slimsched.serving.api.service import InferenceResult, InferenceService
from slimsched.serving.api.tensor import bytes_tensor, pixels_from_bytes

log = logging.getLogger("slim.grpc")
pb: Any = inference_pb2  # mypy cannot see its classes: they are built at import

Method = Callable[[Any], Awaitable[Any]]


class GrpcServer:
    """Serves one InferenceService over gRPC."""

    def __init__(self, service: InferenceService, *, token: str = "") -> None:
        self._service, self._token = service, token
        limits = service.limits
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", limits.body_bytes)],
            maximum_concurrent_rpcs=limits.connections,
        )
        methods: dict[str, tuple[Method, Any]] = {
            "ServerLive": (self._server_live, pb.ServerLiveRequest),
            "ServerReady": (self._server_ready, pb.ServerReadyRequest),
            "ModelReady": (self._model_ready, pb.ModelReadyRequest),
            "ServerMetadata": (self._server_metadata, pb.ServerMetadataRequest),
            "ModelMetadata": (self._model_metadata, pb.ModelMetadataRequest),
            "ModelInfer": (self._model_infer, pb.ModelInferRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(
                    name, method, kind
                ),  # parses the bytes itself: a bad message is the caller's error
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
        """Refuse new calls and let the calls under way finish."""
        await self._server.stop(grace=30.0)

    def _guarded(self, name: str, method: Method, message: Any) -> Callable[[bytes, Any], Awaitable[Any]]:
        """Wrap a method: check the token, parse the message, turn refusals into status codes."""
        kind = "infer" if name == "ModelInfer" else "other"

        async def call(raw: bytes, context: Any) -> Any:
            began_s, code = monotonic(), "CANCELLED"
            try:
                if name not in ("ServerLive", "ServerReady"):
                    self._authenticate(context)
                answer = await method(_parse(raw, message))
                code = "OK"
                return answer
            except RefusalError as refusal:
                code = refusal.grpc_code
                if refusal.retry_after_s is not None:
                    context.set_trailing_metadata(
                        (("retry-after", f"{max(1, round(refusal.retry_after_s))}"),)
                    )
                await context.abort(getattr(grpc.StatusCode, refusal.grpc_code), str(refusal))
            except Exception:
                code = "INTERNAL"
                log.exception("%s failed", name)
                await context.abort(grpc.StatusCode.INTERNAL, "an unexpected failure; see the server's log")
            finally:
                self._service.tally.count_response("grpc", kind, code, monotonic() - began_s)

        return call

    def _authenticate(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if self._token and not hmac.compare_digest(str(given).encode(), f"Bearer {self._token}".encode()):
            raise Unauthenticated("a token is required; send the metadata authorization: Bearer TOKEN")

    async def _server_live(self, request: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(self, request: Any) -> Any:
        return pb.ServerReadyResponse(ready=self._service.is_ready)

    async def _model_ready(self, request: Any) -> Any:
        check_model(request.name, request.version)
        return pb.ModelReadyResponse(ready=self._service.is_ready)

    async def _server_metadata(self, request: Any) -> Any:
        return pb.ServerMetadataResponse(**self._service.server_metadata())

    async def _model_metadata(self, request: Any) -> Any:
        check_model(request.name, request.version)
        return pb.ModelMetadataResponse(**self._service.model_metadata())

    async def _model_infer(self, request: Any) -> Any:
        call = read_call(request, self._service)
        return write_answer(call, await self._service.infer(call), self._service)


def _parse(raw: bytes, message: Any) -> Any:
    try:
        return message.FromString(raw)
    except DecodeError as error:
        raise BadRequest(f"the bytes are not a {message.DESCRIPTOR.name}: {error}") from None


def read_call(request: Any, service: InferenceService) -> Call:
    """Read the call from a ModelInferRequest, whose images are raw bytes or typed contents."""
    check_model(request.model_name, request.model_version)
    if [one.name for one in request.inputs] != ["images"]:
        names = ", ".join(one.name for one in request.inputs) or "none"
        raise BadRequest(f"inputs are {names}; this model takes one input named 'images'")
    one = request.inputs[0]
    shape = tuple(one.shape)
    check_shape(one.datatype, shape, service.card.shape.image_size, service.limits.images_per_request)
    if len(request.raw_input_contents) == 1:
        images = pixels_from_bytes(request.raw_input_contents[0], one.datatype, shape)
    elif one.datatype == "UINT8":
        if any(value > 255 for value in one.contents.uint_contents):
            raise BadRequest("input 'images': UINT8 takes whole numbers from 0 to 255")
        images = pixels_from_bytes(bytes(list(one.contents.uint_contents)), "UINT8", shape)
    else:
        values = np.array(one.contents.fp32_contents, dtype="<f4")
        images = pixels_from_bytes(values.tobytes(), "FP32", shape)
    requested = [RequestedOutput(name=output.name, binary=True) for output in request.outputs]
    default = (RequestedOutput(name="classes", binary=True), RequestedOutput(name="logits", binary=True))
    return Call(
        id=request.id,
        images=images,
        terms=read_terms({name: _value(value) for name, value in request.parameters.items()}),
        outputs=check_outputs(requested) or default,
    )


def write_answer(call: Call, answered: InferenceResult, service: InferenceService) -> Any:
    """Return the result as a ModelInferResponse with raw tensors."""
    response = pb.ModelInferResponse(model_name=MODEL, model_version=VERSION, id=call.id)
    for name, value in answered.parameters.items():
        _set(response.parameters[name], value)
    classes = answered.logits.argmax(axis=1).astype(np.int64)
    for one in call.outputs:
        if one.name == "labels":
            words = service.labels(classes)
            response.outputs.add(name="labels", datatype="BYTES", shape=[len(words)])
            response.raw_output_contents.append(bytes_tensor(words))
            continue
        values = classes if one.name == "classes" else answered.logits
        kind = "INT64" if one.name == "classes" else "FP32"
        response.outputs.add(name=one.name, datatype=kind, shape=list(values.shape))
        response.raw_output_contents.append(values.tobytes())
    return response


def _value(parameter: Any) -> Parameter:
    kind = parameter.WhichOneof("parameter_choice")
    value: Parameter = getattr(parameter, kind) if kind else ""
    return value


def _set(parameter: Any, value: Parameter) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(parameter, kinds[type(value)], value)
