"""The HTTP API as an OpenAPI 3.1 document."""

from typing import Any

from slimsched import __version__
from slimsched.models.spec import TensorSpec
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.model_face import ModelFace, accepted_types
from slimsched.serving.api.service import InferenceService

_WHY = {
    "400": "The request is wrong; the message says where.",
    "401": "A token is required.",
    "403": "The operator does not allow it.",
    "404": "No such path, model or version.",
    "405": "The path exists, but not for this method.",
    "413": "The body is too large.",
    "422": "The model could not run on this input.",
    "429": "Too much work is under way; see Retry-After.",
    "503": "Starting, draining, or no server is up; see Retry-After.",
    "504": "The deadline passed or cannot be met.",
}


def document(service: InferenceService) -> dict[str, Any]:
    """Return the OpenAPI document of the models that are served."""
    limits = service.limits
    paths: dict[str, Any] = {
        "/v2": {"get": _get("Name and version of the server, and its models")},
        "/v2/health/live": {"get": _get("Whether the process is alive", "405")},
        "/v2/health/ready": {"get": _get("Whether requests are accepted", "405", "503")},
        "/v2/goal": {"get": _get("The current goal"), "put": _put_goal()},
        **(_repository() if "model_repository" in service.extensions else {}),
        **(_shared_memory() if "system_shared_memory" in service.extensions else {}),
        "/metrics": {"get": _get("Metrics in the Prometheus text format", kind="text/plain")},
    }
    for face in service.faces:
        model = f"/v2/models/{face.name}"
        for path in (model, f"{model}/versions/{face.version}"):
            paths[path] = {"get": _get("The model's inputs and outputs")}
            paths[f"{path}/ready"] = {"get": _get("Whether the model is ready", "401", "503")}
            paths[f"{path}/infer"] = {"post": _infer(limits, face)}
    schemas = {"Error": _object({"error": {"type": "string"}}, "error"), "Tensor": _tensor()}
    token = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slim Scheduler", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _repository() -> dict[str, Any]:
    """The model repository, where the operator allows it."""
    version = {"version": {"type": "string", "description": "the newest one if left out"}}
    name = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    listed = {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}}
    done = {"application/json": {"schema": {"type": "object"}}}
    ready, loaded = {"ready": {"type": "boolean"}}, {"parameters": {"type": "object", "properties": version}}

    def post(about: str, body: dict[str, Any], answer: dict[str, Any], *codes: str) -> dict[str, Any]:
        content = {"application/json": {"schema": {"type": "object", "properties": body}}}
        refusals = _responses(answer, "400", "401", "403", *codes)
        return {"summary": about, "requestBody": {"content": content}, "responses": refusals}

    path = "/v2/repository/models/{model}"
    load = post("Load a model, or a new version of it", loaded, done, "404", "503")
    unload = post("Unload a model", {"parameters": {"type": "object"}}, done, "404")
    return {
        "/v2/repository/index": {"post": post("List the models of the repository", ready, listed)},
        f"{path}/load": {"post": {**load, "parameters": name}},
        f"{path}/unload": {"post": {**unload, "parameters": name}},
    }


def _registration() -> dict[str, Any]:
    """What is registered of shared memory."""
    size = {"type": "integer", "minimum": 0, "maximum": 2**40}
    length = {"byte_size": {**size, "minimum": 1}}
    return _object({"key": {"type": "string"}, "offset": size, **length}, "key", "byte_size")


def _shared_memory() -> dict[str, Any]:
    """The registration of shared memory, where the operator allows it."""
    listed = {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}}
    done = {"application/json": {"schema": {"type": "object"}}}
    name = [{"name": "region", "in": "path", "required": True, "schema": {"type": "string"}}]
    body = {"required": True, "content": {"application/json": {"schema": _registration()}}}
    register = {
        "summary": "Register a region",
        "requestBody": body,
        "responses": _responses(done, "400", "401"),
    }
    root, path = "/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"
    status = {"summary": "Describe a region", "responses": _responses(listed, "401", "404")}
    forget = {"summary": "Forget a region", "responses": _responses(done, "401")}
    return {
        f"{root}/status": {"get": {"summary": "List the regions", "responses": _responses(listed, "401")}},
        f"{root}/unregister": {"post": {"summary": "Forget all", "responses": _responses(done, "401")}},
        f"{path}/register": {"post": {**register, "parameters": name}},
        f"{path}/status": {"get": {**status, "parameters": name}},
        f"{path}/unregister": {"post": {**forget, "parameters": name}},
    }


def _get(about: str, *codes: str, kind: str = "application/json") -> dict[str, Any]:
    schema = {"type": "string"} if kind == "text/plain" else {"type": "object"}
    return {"summary": about, "responses": _responses({kind: {"schema": schema}}, *(codes or ("401",)))}


def _put_goal() -> dict[str, Any]:
    goal = {"type": "string", "examples": ["accuracy>=75, p99<=60ms, min energy"]}
    model = {"type": "string", "description": "the model whose goal it is; left out: all without their own"}
    schema = _object({"goal": {"anyOf": [goal, {"type": "null"}]}, "model": model}, "goal")
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    answer = {"application/json": {"schema": {"type": "object", "required": ["goal"]}}}
    return {
        "summary": "Change the goal",
        "requestBody": body,
        "responses": _responses(answer, "400", "401", "404", "413"),
    }


def _infer(limits: Limits, face: ModelFace) -> dict[str, Any]:
    inputs = [_input(tensor, limits.examples_per_request) for tensor in face.spec.inputs]
    items = inputs[0] if len(inputs) == 1 else {"oneOf": inputs}
    output = _object({"name": {"enum": list(face.outputs)}}, "name")
    body = _object(
        {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": items, "minItems": len(inputs), "maxItems": len(inputs)},
            "outputs": {"type": "array", "items": output, "uniqueItems": True},
            "parameters": {"type": "object", "properties": _terms(face)},
        },
        "inputs",
    )
    answer = _object(
        {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
            "parameters": {"type": "object"},
        },
        "model_name",
        "outputs",
        "parameters",
    )
    codes = ("400", "401", "413", "422", "429", "503", "504")
    return {
        "summary": f"Run {face.name}",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses({"application/json": {"schema": answer}}, *codes),
    }


def _input(tensor: TensorSpec, most: int) -> dict[str, Any]:
    """One input tensor with its data in the JSON."""
    sizes = [{"type": "integer", "minimum": 1, "maximum": most}, *({"const": size} for size in tensor.shape)]
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": tensor.name},
            "shape": {
                "type": "array",
                "prefixItems": sizes,
                "minItems": len(sizes),
                "maxItems": len(sizes),
            },
            "datatype": {"enum": list(accepted_types(tensor))},
            "data": {"type": "array", "items": {"type": "number"}},
        },
    }


def _terms(face: ModelFace) -> dict[str, Any]:
    return {
        "deadline_ms": {"type": "number", "exclusiveMinimum": 0},
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "deadline in microseconds, Triton's name for it",
        },
        "priority": {"type": "integer", "minimum": -1000, "maximum": 1000},
        "min_accuracy": {"type": "number", "minimum": 0, "maximum": 100},
        "max_energy_mj": {"type": "number", "minimum": 0},
        "plan": {"enum": [face.spec.text(plan) for plan in face.spec.plans]},
    }


def _tensor() -> dict[str, Any]:
    return _object(
        {
            "name": {"type": "string"},
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array"},
        },
        "name",
        "datatype",
        "shape",
    )


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _responses(content: dict[str, Any], *codes: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {code: {"description": _WHY[code], "content": error} for code in codes}
    return {"200": {"description": "Done.", "content": content}, **refusals}
