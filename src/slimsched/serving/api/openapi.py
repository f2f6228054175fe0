"""The HTTP API as an OpenAPI 3.1 document."""

from typing import Any

from slimsched import __version__
from slimsched.models.width import WIDTHS
from slimsched.serving.api.call import MODEL, OUTPUTS, VERSION
from slimsched.serving.api.service import Limits

_WHY = {
    "400": "The request is wrong; the message says where.",
    "401": "A token is required.",
    "404": "No such path, model or version.",
    "405": "The path exists, but not for this method.",
    "413": "The body is too large.",
    "422": "The model could not run on this input.",
    "429": "Too many images are under way; see Retry-After.",
    "503": "Starting, draining, or no server is up; see Retry-After.",
    "504": "The deadline passed or cannot be met.",
}


def document(limits: Limits, side: int) -> dict[str, Any]:
    """Return the OpenAPI document."""
    model = f"/v2/models/{MODEL}"
    paths: dict[str, Any] = {
        "/v2": {"get": _get("Name and version of the server")},
        "/v2/health/live": {"get": _get("Whether the process is alive", "405")},
        "/v2/health/ready": {"get": _get("Whether requests are accepted", "405", "503")},
        "/v2/goal": {"get": _get("The current goal"), "put": _put_goal()},
        "/metrics": {"get": _get("Metrics in the Prometheus text format", kind="text/plain")},
    }
    for path in (model, f"{model}/versions/{VERSION}"):
        paths[path] = {"get": _get("The model's inputs and outputs")}
        paths[f"{path}/ready"] = {"get": _get("Whether the model is ready", "401", "503")}
        paths[f"{path}/infer"] = {"post": _infer(limits, side)}
    schemas = {"Error": _object({"error": {"type": "string"}}, "error"), "Tensor": _tensor()}
    token = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slim Scheduler", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _get(about: str, *codes: str, kind: str = "application/json") -> dict[str, Any]:
    schema = {"type": "string"} if kind == "text/plain" else {"type": "object"}
    return {"summary": about, "responses": _responses({kind: {"schema": schema}}, *(codes or ("401",)))}


def _put_goal() -> dict[str, Any]:
    goal = {"type": "string", "examples": ["accuracy>=75, p99<=60ms, min energy"]}
    body = {"required": True, "content": {"application/json": {"schema": _object({"goal": goal}, "goal")}}}
    answer = {"application/json": {"schema": {"type": "object", "required": ["goal"]}}}
    return {
        "summary": "Change the goal",
        "requestBody": body,
        "responses": _responses(answer, "400", "401", "413"),
    }


def _infer(limits: Limits, side: int) -> dict[str, Any]:
    images = {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": "images"},
            "shape": {
                "type": "array",
                "prefixItems": [
                    {"type": "integer", "minimum": 1, "maximum": limits.images_per_request},
                    *({"const": size} for size in (3, side, side)),
                ],
                "minItems": 4,
                "maxItems": 4,
            },
            "datatype": {"enum": ["UINT8", "FP32"]},
            "data": {"type": "array", "items": {"type": "number"}},
        },
    }
    output = _object({"name": {"enum": list(OUTPUTS)}}, "name")
    body = _object(
        {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": images, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": output},
            "parameters": {"type": "object", "properties": _terms()},
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
        "summary": "Classify images",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses({"application/json": {"schema": answer}}, *codes),
    }


def _terms() -> dict[str, Any]:
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
        "width": {"enum": list(WIDTHS)},
    }


def _tensor() -> dict[str, Any]:
    return _object(
        {
            "name": {"enum": list(OUTPUTS)},
            "datatype": {"enum": ["INT64", "FP32", "BYTES"]},
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
