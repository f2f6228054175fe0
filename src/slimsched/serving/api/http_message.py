"""The server's side of Open Inference Protocol v2 over HTTP: JSON, optionally followed by raw tensors."""

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from slimsched.serving.api.call import (
    MODEL,
    VERSION,
    Call,
    Parameter,
    RequestedOutput,
    check_outputs,
    check_shape,
    read_terms,
)
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.service import InferenceResult, InferenceService
from slimsched.serving.api.tensor import bytes_tensor, pixels_from_bytes, pixels_from_json
from slimsched.serving.domain.terms import Terms


class _Input(Struct, frozen=True, kw_only=True):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Parameter] = {}
    data: msgspec.Raw = msgspec.Raw(b"")


class _Output(Struct, frozen=True, kw_only=True):
    name: str
    parameters: dict[str, Parameter] = {}


class _Infer(Struct, frozen=True, kw_only=True):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Parameter] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Infer)
_encoder = msgspec.json.Encoder()

CACHED_HEAD_BYTES = 1024
"""A JSON head up to this length is parsed once and cached: a client sends the same head again and again."""


class _Head(Struct, frozen=True, kw_only=True):
    """The parsed and checked JSON of a request, without the pixels."""

    id: str
    datatype: str
    shape: tuple[int, ...]
    size: Parameter | None
    terms: Terms
    outputs: tuple[RequestedOutput, ...]


def read_call(body: bytes, json_bytes: int | None, service: InferenceService) -> Call:
    """Read the call from a request body; `json_bytes` is the length of its JSON if raw tensors follow."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes; "
            "give the JSON's length"
        )
    image_size, max_images = service.card.shape.image_size, service.limits.images_per_request
    if json_bytes is not None and json_bytes <= CACHED_HEAD_BYTES:
        head, data = _read_head_cached(body[:json_bytes], image_size, max_images)
    else:
        head, data = _read_head(body if json_bytes is None else body[:json_bytes], image_size, max_images)
    if head.size is not None:
        raw = memoryview(body)[len(body) if json_bytes is None else json_bytes :]
        if not isinstance(head.size, int) or len(raw) != head.size:
            raise BadRequest(
                f"input 'images': binary_data_size is {head.size}, but {len(raw)} bytes follow the JSON"
            )
        images = pixels_from_bytes(raw, head.datatype, head.shape)
    elif not data:
        raise BadRequest("input 'images' has neither data nor binary_data_size; give one of them")
    else:
        images = pixels_from_json(data, head.datatype, head.shape)
    return Call(id=head.id, images=images, terms=head.terms, outputs=head.outputs)


def _read_head(text: bytes, image_size: int, max_images: int) -> tuple[_Head, bytes]:
    """Parse and check the JSON of a request; return its head and the pixels in it, if any."""
    try:
        message = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not an inference request: {error}") from None
    if [one.name for one in message.inputs] != ["images"]:
        names = ", ".join(one.name for one in message.inputs) or "none"
        raise BadRequest(f"inputs are {names}; this model takes one input named 'images'")
    one = message.inputs[0]
    check_shape(one.datatype, tuple(one.shape), image_size, max_images)
    all_binary = bool(message.parameters.get("binary_data_output", False))
    requested = [
        RequestedOutput(name=o.name, binary=bool(o.parameters.get("binary_data", all_binary)))
        for o in message.outputs
    ]
    head = _Head(
        id=message.id,
        datatype=one.datatype,
        shape=tuple(one.shape),
        size=one.parameters.get("binary_data_size"),
        terms=read_terms(message.parameters),
        outputs=check_outputs(requested) or _default(binary=all_binary),
    )
    return head, bytes(one.data)


_read_head_cached = lru_cache(maxsize=256)(_read_head)


def write_answer(
    call: Call, answered: InferenceResult, service: InferenceService
) -> tuple[bytes, int | None]:
    """Return the response body, and the length of its JSON if raw tensors follow."""
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    classes = answered.logits.argmax(axis=1).astype(np.int64)
    for one in call.outputs:
        if one.name == "labels":
            words = service.labels(classes)
            kind, shape = "BYTES", [len(words)]
            numbers: list[Any] = list(words)
            packed = bytes_tensor(words) if one.binary else b""
        else:
            values = classes if one.name == "classes" else answered.logits
            kind, shape = ("INT64" if one.name == "classes" else "FP32"), list(values.shape)
            packed = values.tobytes() if one.binary else b""
            numbers = [] if one.binary else values.reshape(-1).tolist()
        entry: dict[str, Any] = {"name": one.name, "datatype": kind, "shape": shape}
        if one.binary:
            entry["parameters"] = {"binary_data_size": len(packed)}
            raw.append(packed)
        else:
            entry["data"] = numbers
        outputs.append(entry)
    message = {
        "model_name": MODEL,
        "model_version": VERSION,
        "id": call.id,
        "parameters": answered.parameters,
        "outputs": outputs,
    }
    head = _encoder.encode(message)
    return b"".join([head, *raw]), len(head) if raw else None


def _default(*, binary: bool) -> tuple[RequestedOutput, ...]:
    return (RequestedOutput(name="classes", binary=binary), RequestedOutput(name="logits", binary=binary))
