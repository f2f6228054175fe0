"""Open Inference Protocol v2 as HTTP bodies: JSON, with raw tensors behind it when the client says so."""

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from slimsched.api.call import MODEL, VERSION, Call, Parameter, Wanted, check_shape, read_terms
from slimsched.api.refusal import BadRequest
from slimsched.api.service import Answered, InferenceService
from slimsched.api.tensor import bytes_tensor, pixels_from_bytes, pixels_from_json


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


def read_call(body: bytes, json_bytes: int | None, service: InferenceService) -> Call:
    """The call in a request body; `json_bytes` is the length of its JSON when raw tensors follow."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes; "
            "give the JSON's length"
        )
    view = memoryview(body)
    head = view if json_bytes is None else view[:json_bytes]
    try:
        message = _decoder.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no inference request: {error}") from None
    if [one.name for one in message.inputs] != ["images"]:
        names = ", ".join(one.name for one in message.inputs) or "none"
        raise BadRequest(f"inputs are {names}; this model takes one input named 'images'")
    one = message.inputs[0]
    shape, card = tuple(one.shape), service.card.shape
    check_shape(one.datatype, shape, card.image_size, service.limits.images_per_request)
    size = one.parameters.get("binary_data_size")
    if size is not None:
        raw = view[len(head) :]
        if not isinstance(size, int) or len(raw) != size:
            raise BadRequest(
                f"input 'images': binary_data_size is {size}, but {len(raw)} bytes follow the JSON"
            )
        images = pixels_from_bytes(raw, one.datatype, shape)
    elif not len(bytes(one.data)):
        raise BadRequest("input 'images' has neither data nor binary_data_size; give one of them")
    else:
        images = pixels_from_json(bytes(one.data), one.datatype, shape)
    all_binary = bool(message.parameters.get("binary_data_output", False))
    wanted = [
        Wanted(name=o.name, binary=bool(o.parameters.get("binary_data", all_binary))) for o in message.outputs
    ]
    return Call(
        id=message.id,
        images=images,
        terms=read_terms(message.parameters),
        wanted=service.wanted(wanted) or _default(binary=all_binary),
    )


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
