"""The server's side of Open Inference Protocol v2 over HTTP: JSON, optionally followed by raw tensors."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slimsched.serving.api.call import (
    Call,
    CallHead,
    RequestedOutput,
    check_answer,
    check_id,
    check_inputs,
    check_outputs,
    read_terms,
)
from slimsched.serving.api.json_body import read_body
from slimsched.serving.api.known_head import Layout
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.model_face import ModelFace
from slimsched.serving.api.receipt import InferenceResult
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.request_parameters import Parameter, read_parameters
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.shared_region import Place, RegionPart, Size, filled, write_parts
from slimsched.serving.api.tensor import check_tensor, pack, read_bytes, read_json, read_shared

Length = Annotated[int, Meta(ge=-1, le=2**40)]  # -1 gets an answer that says what to send


class _InputParameters(Place, frozen=True, kw_only=True):
    binary_data_size: Size | None = None


class _Input(Struct, frozen=True, kw_only=True):
    name: str
    shape: Annotated[list[Length], Meta(max_length=32)]
    datatype: str
    parameters: _InputParameters = _InputParameters()
    data: msgspec.Raw = msgspec.Raw(b"")


class _OutputParameters(Place, frozen=True, kw_only=True):
    binary_data: bool | None = None


class _Output(Struct, frozen=True, kw_only=True):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Infer(Struct, frozen=True, kw_only=True):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Parameter] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Infer)
_encoder = msgspec.json.Encoder()

CACHED_HEAD_BYTES = 1024
"""A JSON head up to this length is parsed once and cached: a client sends the same head again and again."""
SHARED_INPUT = b'"shared_memory_region"'


class _Tensor(Struct, frozen=True, kw_only=True):
    """An input as the JSON describes it; `size` is its length in bytes if it follows the JSON.

    With a `place` it lies in shared memory.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: bytes
    place: Place | None


_Head = CallHead[_Tensor]

NETWORK, REQUEST = "\0network", "\0request"
_MARKS = [b'"\\u0000network"', b'"\\u0000request"']
"""What stands for two numbers of an answer until they are known."""


def read_call(
    body: bytes | bytearray | memoryview,
    json_bytes: int | None,
    limits: Limits,
    face: ModelFace,
    loan: Loan,
) -> Call:
    """Read the call from a request body; `json_bytes` is the length of its JSON if raw tensors follow."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes; "
            "give the JSON's length"
        )
    most = limits.examples_per_request, limits.answer_bytes
    end = len(body) if json_bytes is None else json_bytes
    if end > CACHED_HEAD_BYTES:
        head = _read_head(body[:end], face, most)
    else:
        text = bytes(body[:end])
        is_cached = json_bytes is not None or SHARED_INPUT in text  # else it holds the data itself
        head = (_read_head_cached if is_cached else _read_head)(text, face, most)
    return head.call(face, _read_tensors(face, head, memoryview(body)[end:], loan), loan)


def _read_tensors(face: ModelFace, head: _Head, raw: memoryview, loan: Loan) -> tuple[memoryview, ...]:
    """Read every input, in the model's order; raw ones follow the JSON in the order it names them."""
    tensors: dict[str, memoryview] = {}
    at = 0
    for one in head.inputs:
        tensor = face.inputs[one.name]
        if one.place is not None:
            values = read_shared(tensor, one.place, one.datatype, one.shape, loan)
        elif one.size is not None:
            if one.size > len(raw) - at:
                raise BadRequest(
                    f"input '{one.name}': binary_data_size is {one.size}, but {len(raw) - at} bytes follow "
                    "the JSON"
                )
            values = read_bytes(tensor, raw[at : at + one.size], one.datatype, one.shape)
            at += one.size
        elif not one.data:
            raise BadRequest(f"input '{one.name}' has neither data nor binary_data_size; give one of them")
        else:
            values = read_json(tensor, one.data, one.datatype, one.shape)
        tensors[one.name] = values.data.cast("B")
    if at != len(raw):
        raise BadRequest(f"{len(raw)} bytes follow the JSON, but its inputs take {at}")
    return tuple([tensors[name] for name in face.inputs])


def raw_layout(text: bytes, limits: Limits, face: ModelFace) -> Layout | None:
    """Return where a request's tensors lie behind its JSON; None if their bytes are not what the model takes.

    The request was read before, so the JSON is right.
    """
    head = _read_head_cached(text, face, (limits.examples_per_request, limits.answer_bytes))
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for one in head.inputs:
        kind = face.inputs[one.name].datatype
        if one.size is None or one.place is not None or one.datatype != kind or kind in ("BOOL", "BYTES"):
            return None
        places[one.name] = at, one.size
        at += one.size
    return [places[name] for name in face.inputs]


def _read_head(text: bytes | bytearray | memoryview, face: ModelFace, most: tuple[int, int]) -> _Head:
    """Parse and check the JSON of a request, within the most examples and the largest answer."""
    message = read_body(_decoder, text, "an inference request")
    parameters = read_parameters(message.parameters)
    check_id(message.id)
    check_inputs(face, [one.name for one in message.inputs])
    counts = {
        check_tensor(face.inputs[one.name], one.datatype, tuple(one.shape), most[0]) for one in message.inputs
    }
    if len(counts) > 1:
        raise BadRequest(f"inputs have {sorted(counts)} rows; give all the same number")
    all_binary = parameters.binary_data_output
    requested = [
        RequestedOutput(
            name=o.name,
            binary=all_binary if o.parameters.binary_data is None else o.parameters.binary_data,
            place=_place(o.parameters),
        )
        for o in message.outputs
    ]
    outputs, count = check_outputs(face, requested, binary=all_binary), counts.pop()
    check_answer(face, outputs, count, most[1])
    return _Head(
        id=message.id,
        count=count,
        inputs=tuple(map(_described, message.inputs)),
        terms=read_terms(face, parameters),
        outputs=outputs,
    )


def _described(one: _Input) -> _Tensor:
    place, size = _place(one.parameters), one.parameters.binary_data_size
    if place is not None and (size is not None or one.data):
        raise BadRequest(f"input '{one.name}' names shared memory and has data; give one of them")
    return _Tensor(
        name=one.name,
        datatype=one.datatype,
        shape=tuple(one.shape),
        size=size,
        data=bytes(one.data),
        place=place,
    )


def _place(parameters: Place) -> Place | None:
    return parameters if parameters.shared_memory_region else None


_read_head_cached = lru_cache(maxsize=256)(_read_head)


def write_answer(call: Call, answered: InferenceResult) -> tuple[bytes, int | None]:
    """Return the response body, and the length of its JSON if raw tensors follow."""
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    shared: list[tuple[RegionPart, bytes]] = []
    for one in call.outputs:
        kind, values = call.face.tensor(one.name, answered.outputs)
        shape = [len(values)] if isinstance(values, list) else list(values.shape)
        entry: dict[str, Any] = {"name": one.name, "datatype": kind, "shape": shape}
        if one.place is not None:
            part, packed = call.parts[one.name], pack(values)
            part.check(f"output '{one.name}'", len(packed))
            shared.append((part, packed))
            entry["parameters"] = filled(one.place, len(packed))
        elif one.binary:
            packed = pack(values)
            entry["parameters"] = {"binary_data_size": len(packed)}
            raw.append(packed)
        else:
            entry["data"] = values if isinstance(values, list) else values.reshape(-1).tolist()
        outputs.append(entry)
    head = _encode(call, answered.parameters, outputs)
    write_parts(shared)
    return b"".join([head, *raw]), len(head) if raw else None


def write_around(
    call: Call, parameters: dict[str, Parameter], shapes: Sequence[tuple[int, ...]]
) -> tuple[bytes, bytes, bytes]:
    """Return the JSON of an answer around its network time and its request's number.

    Its outputs all follow as raw tensors of these shapes.
    """
    outputs: list[dict[str, Any]] = []
    for one, shape in zip(call.outputs, shapes, strict=True):
        size = call.count * call.face.row_bytes(one.name, as_text=False)
        kind = call.face.datatype(one.name)
        entry = {"name": one.name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}
        outputs.append(entry)
    text = _encode(call, parameters | {"network_ms": NETWORK, "request": REQUEST}, outputs)
    before, _, rest = text.partition(_MARKS[0])
    between, _, after = rest.partition(_MARKS[1])
    return before, between, after


def _encode(call: Call, parameters: dict[str, Parameter], outputs: list[dict[str, Any]]) -> bytes:
    message = {
        "model_name": call.face.name,
        "model_version": call.face.version,
        "id": call.id,
        "parameters": parameters,
        "outputs": outputs,
    }
    return _encoder.encode(message)
