"""Calls with CUDA memory over HTTP and gRPC, by hand: they need no more than the server itself."""

import base64
import http.client
import json
from typing import Any

import grpc

from served import Served
from slimsched.serving.api.grpc_message import pb


class RefusedError(Exception):
    """What a server refused, and with which code."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class HttpWire:
    """Calls in JSON."""

    def __init__(self, served: Served) -> None:
        self._address = served.http

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status != 200:
            raise RefusedError(str(response.status), answer["error"])
        return answer

    def register(self, name: str, handle: bytes, size: int, device: int = 0) -> None:
        raw = {"b64": base64.b64encode(handle).decode()}
        given = {"raw_handle": raw, "device_id": device, "byte_size": size}
        self.ask("POST", f"/v2/cudasharedmemory/region/{name}/register", given)

    def unregister(self, name: str = "") -> None:
        self.ask("POST", f"/v2/cudasharedmemory{f'/region/{name}' if name else ''}/unregister")

    def listed(self, name: str = "") -> dict[str, tuple[int, int]]:
        found = self.ask("GET", f"/v2/cudasharedmemory{f'/region/{name}' if name else ''}/status")
        return {one["name"]: (one["device_id"], one["byte_size"]) for one in found}

    def infer(self, count: int, place: dict[str, Any], outputs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        tensor = {"name": "images", "shape": [count, 3, 32, 32], "datatype": "UINT8", "parameters": place}
        asked = [{"name": name, "parameters": one} for name, one in outputs.items()]
        body = {"inputs": [tensor], "outputs": asked, "parameters": {"plan": "0.25"}}
        answer = self.ask("POST", "/v2/models/slimresnet/infer", body)
        return {one["name"]: one["parameters"] for one in answer["outputs"]}


class GrpcWire:
    """The same in protocol buffers."""

    def __init__(self, served: Served) -> None:
        self._channel = grpc.insecure_channel(served.grpc)

    def ask(self, name: str, request: Any, answer: str) -> Any:
        method = self._channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(pb, answer).FromString,
        )
        try:
            return method(request, timeout=60)
        except grpc.RpcError as error:
            raise RefusedError(error.code().name, error.details()) from None

    def _cuda(self, step: str, **fields: Any) -> Any:
        name = f"CudaSharedMemory{step}"
        return self.ask(name, getattr(pb, f"{name}Request")(**fields), f"{name}Response")

    def register(self, name: str, handle: bytes, size: int, device: int = 0) -> None:
        self._cuda("Register", name=name, raw_handle=handle, device_id=device, byte_size=size)

    def unregister(self, name: str = "") -> None:
        self._cuda("Unregister", name=name)

    def listed(self, name: str = "") -> dict[str, tuple[int, int]]:
        regions = self._cuda("Status", name=name).regions
        return {one.name: (one.device_id, one.byte_size) for one in regions.values()}

    def infer(self, count: int, place: dict[str, Any], outputs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        request = pb.ModelInferRequest(model_name="slimresnet")
        request.parameters["plan"].string_param = "0.25"
        tensor = request.inputs.add(name="images", datatype="UINT8", shape=[count, 3, 32, 32])
        _put(tensor.parameters, place)
        for name, one in outputs.items():
            _put(request.outputs.add(name=name).parameters, one)
        answer = self.ask("ModelInfer", request, "ModelInferResponse")
        return {
            one.name: {key: _value(value) for key, value in one.parameters.items()} for one in answer.outputs
        }


def _put(parameters: Any, given: dict[str, Any]) -> None:
    for key, value in given.items():
        setattr(parameters[key], "string_param" if isinstance(value, str) else "int64_param", value)


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("parameter_choice"))


def place(name: str, size: int, offset: int = 0) -> dict[str, Any]:
    return {
        "shared_memory_region": name,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }
