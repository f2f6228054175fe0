"""The server against its OpenAPI document and the protocol's; schemathesis makes requests from both."""

from typing import Any

import schemathesis
import tritonclient.grpc.service_pb2 as triton
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from cluster import small_cluster
from served import Served
from slimsched.serving.api.pages import document
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.api.service import InferenceService, Limits
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import GatewayOptions
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import LocalEngine
from slimsched.serving.routers.registry import make_router

CLUSTER = small_cluster()
GATEWAY = Gateway(CLUSTER, make_router("jsq", CLUSTER, 0), GatewayOptions())
SERVICE = InferenceService(LiveCluster(GATEWAY, LocalEngine([])), Limits())

schema = schemathesis.openapi.from_dict(document(SERVICE))


def object_of(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def operation(answer: str = "", refusal: str = "", body: str = "") -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": ref(name)}}} if name else {}

    responses = {"200": {"description": "OK", **content(answer)}}
    if refusal:
        responses["400"] = {"description": "Bad Request", **content(refusal)}
    return {"responses": responses, **({"requestBody": content(body)} if body else {})}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
TENSOR = {"name": TEXT, "shape": list_of(WHOLE), "datatype": TEXT}
WITH_DATA = {**TENSOR, "parameters": ref("parameters"), "data": ref("tensor_data")}
ONE_MODEL = "/v2/models/{MODEL_NAME}/versions/{MODEL_VERSION}"
NAMED = [
    {"name": name, "in": "path", "required": True, "schema": {"enum": [value]}}
    for name, value in (("MODEL_NAME", "slimresnet"), ("MODEL_VERSION", "1"))
]
OFFICIAL = {
    "openapi": "3.0.0",
    "info": {"title": "Data Plane", "version": "2.0"},
    "paths": {
        "/v2/health/live": {"get": operation()},
        "/v2/health/ready": {"get": operation()},
        "/v2/": {"get": operation("metadata_server_response", "metadata_server_error_response")},
        ONE_MODEL: {"parameters": NAMED, "get": operation("metadata_model_response")},
        f"{ONE_MODEL}/ready": {"parameters": NAMED, "get": operation()},
        f"{ONE_MODEL}/infer": {
            "parameters": NAMED,
            "post": operation("inference_response", "inference_error_response", "inference_request"),
        },
    },
    "components": {
        "schemas": {
            "metadata_server_response": object_of(
                "name", "version", "extensions", name=TEXT, version=TEXT, extensions=list_of(TEXT)
            ),
            "metadata_server_error_response": object_of("error", error=TEXT),
            "metadata_model_response": object_of(
                "name",
                "platform",
                name=TEXT,
                versions=list_of(TEXT),
                platform=TEXT,
                inputs=list_of(ref("metadata_tensor")),
                outputs=list_of(ref("metadata_tensor")),
                properties={"type": "object", "additionalProperties": TEXT},
            ),
            "metadata_tensor": object_of(*TENSOR, **TENSOR),
            "inference_request": object_of(
                "inputs",
                id=TEXT,
                parameters=ref("parameters"),
                inputs=list_of(ref("request_input")),
                outputs=list_of(ref("request_output")),
            ),
            "parameters": {"type": "object"},
            "request_input": object_of("name", "shape", "datatype", "data", **WITH_DATA),
            "tensor_data": list_of(
                {"anyOf": [ref("tensor_data"), {"type": "number"}, TEXT, {"type": "boolean"}]}
            ),
            "request_output": object_of("name", name=TEXT, parameters=ref("parameters")),
            "response_output": object_of("name", "shape", "datatype", "data", **WITH_DATA),
            "inference_response": object_of(
                "model_name",
                "outputs",
                model_name=TEXT,
                model_version=TEXT,
                id=TEXT,
                parameters=ref("parameters"),
                outputs=list_of(ref("response_output")),
            ),
            "inference_error_response": {"type": "object", "properties": {"error": TEXT}},
        }
    },
}
"""What open_inference_rest.yaml of the Open Inference Protocol says at commit d49cc23f89d7.

There, paths have a $ before each parameter, which is not part of them.
"""

official = schemathesis.openapi.from_dict(OFFICIAL)


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_follows_the_document(case: schemathesis.Case, served: Served) -> None:
    """Data that does not fit its shape and text that is not a goal may be refused; no schema can say so."""
    case.call_and_validate(base_url=f"http://{served.http}", excluded_checks=[positive_data_acceptance])


@official.parametrize()
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_follows_the_protocol(case: schemathesis.Case, served: Served) -> None:
    """What the schema does not say: a name that no model has gives 404, and most tensors fit no model."""
    case.path_parameters = {one["name"]: one["schema"]["enum"][0] for one in NAMED if ONE_MODEL in case.path}
    excluded = [positive_data_acceptance]
    case.call_and_validate(base_url=f"http://{served.http}", excluded_checks=excluded)


def test_an_answer_follows_the_protocol(served: Served) -> None:
    image = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "data": [7] * 3072}
    infer = official[f"{ONE_MODEL}/infer"]["POST"]
    case = infer.Case(
        path_parameters={"MODEL_NAME": "slimresnet", "MODEL_VERSION": "1"},
        body={"id": "42", "inputs": [image], "outputs": [{"name": "labels"}, {"name": "logits"}]},
        media_type="application/json",
    )
    response = case.call_and_validate(base_url=f"http://{served.http}")
    assert response.status_code == 200


def fields_of(message: Descriptor) -> dict[str, tuple[int, int, str]]:
    """Number, type and type of message of each field, of messages in it too."""
    found = {f"{message.full_name}.{one.name}": (one.number, one.type, _kind(one)) for one in message.fields}
    for nested in message.nested_types:
        found |= fields_of(nested)
    return found


def _kind(field: FieldDescriptor) -> str:
    return field.message_type.full_name if field.message_type is not None else ""


def test_messages_and_methods_over_grpc_are_those_of_triton() -> None:
    pool = triton.ModelInferRequest.DESCRIPTOR.file.pool
    ours = inference_pb2.DESCRIPTOR
    for name, message in ours.message_types_by_name.items():
        theirs = fields_of(pool.FindMessageTypeByName(f"inference.{name}"))
        extra = set(fields_of(message).items()) - set(theirs.items())
        assert {one for one, _ in extra} <= {  # the Open Inference Protocol has it, Triton has not
            "inference.ModelMetadataResponse.properties",
            "inference.ModelMetadataResponse.PropertiesEntry.key",
            "inference.ModelMetadataResponse.PropertiesEntry.value",
        }
    [service] = ours.services_by_name.values()
    theirs = pool.FindServiceByName(service.full_name)
    for method in service.methods:
        other = theirs.methods_by_name[method.name]
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert (method.client_streaming, method.server_streaming) == (
            other.client_streaming,
            other.server_streaming,
        )
    assert set(theirs.methods_by_name) == {method.name for method in service.methods}
    for name, enum in ours.enum_types_by_name.items():
        theirs = pool.FindEnumTypeByName(f"inference.{name}")
        assert [(one.name, one.number) for one in enum.values] == [
            (one.name, one.number) for one in theirs.values
        ]
