"""Open Inference Protocol v2 as HTTP bodies: JSON, with raw tensors behind it when the client says so."""

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
    Wanted,
    check_shape,
    known_outputs,
    read_terms,
)
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.service import Answered, InferenceService
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

KEPT_BYTES = 1024
"""JSON before raw tensors up to this length is kept as it was read."""


class _Head(Struct, frozen=True, kw_only=True):
    """What the JSON of a request says, but for numbers in it."""

    id: str
    datatype: str
    shape: tuple[int, ...]
    size: Parameter | None
    terms: Terms
    wanted: tuple[Wanted, ...]


def read_call(body: bytes, json_bytes: int | None, service: InferenceService) -> Call:
    """The call in a request body; `json_bytes` is the length of its JSON when raw tensors follow."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes; "
            "give the JSON's length"
        )
    side, most = service.card.shape.image_size, service.limits.images_per_request
    if json_bytes is not None and json_bytes <= KEPT_BYTES:
        head, data = _kept_head(body[:json_bytes], side, most)  # a client says the same again and again
    else:
        head, data = _head(body if json_bytes is None else body[:json_bytes], side, most)
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
    return Call(id=head.id, images=images, terms=head.terms, wanted=head.wanted)


def _head(text: bytes, side: int, most: int) -> tuple[_Head, bytes]:
    """The JSON of a request, checked, and the numbers in it if there are any."""
    try:
        message = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no inference request: {error}") from None
    if [one.name for one in message.inputs] != ["images"]:
        names = ", ".join(one.name for one in message.inputs) or "none"
        raise BadRequest(f"inputs are {names}; this model takes one input named 'images'")
    one = message.inputs[0]
    check_shape(one.datatype, tuple(one.shape), side, most)
    all_binary = bool(message.parameters.get("binary_data_output", False))
    wanted = [
        Wanted(name=o.name, binary=bool(o.parameters.get("binary_data", all_binary))) for o in message.outputs
    ]
    head = _Head(
        id=message.id,
        datatype=one.datatype,
        shape=tuple(one.shape),
        size=one.parameters.get("binary_data_size"),
        terms=read_terms(message.parameters),
        wanted=known_outputs(wanted) or _default(binary=all_binary),
    )
    return head, bytes(one.data)


_kept_head = lru_cache(maxsize=256)(_head)


def write_answer(call: Call, answered: Answered, service: InferenceService) -> tuple[bytes, int | None]:
    """The response body, and the length of its JSON when raw tensors follow."""
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    classes = answered.logits.argmax(axis=1).astype(np.int64)
    for one in call.wanted:
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


def _default(*, binary: bool) -> tuple[Wanted, ...]:
    return (Wanted(name="classes", binary=binary), Wanted(name="logits", binary=binary))
