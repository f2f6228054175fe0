"""Inference calls as protocol buffers."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import NUMPY
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
from slimsched.serving.api.desk import Desk
from slimsched.serving.api.grpc_head import places, split
from slimsched.serving.api.known_head import Layout
from slimsched.serving.api.model_face import ModelFace
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.request_parameters import Parameter, read_parameters
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.shared_region import Place
from slimsched.serving.api.tensor import check_tensor, read_bytes, read_shared

pb: Any = inference_pb2  # mypy cannot see its classes: they are built at import

CONTENTS = {
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}
"""Where a tensor's numbers are when they are not raw; smaller integers share a field by their sign."""


class _Tensor(Struct, frozen=True, kw_only=True):
    """An input as the request describes it; with a `place` it lies in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: Place | None


_Head = CallHead[_Tensor]


def read_call(raw: bytes, desk: Desk, loan: Loan) -> Call:
    """Read the call from the bytes of a ModelInferRequest; its tensors stay where they are."""
    parts = split(raw)
    if parts is None:
        return read_parsed_call(parse(raw, pb.ModelInferRequest), desk, loan)
    text, tensors = parts
    face = desk.face(*_model_of(text))
    head = _read_head_cached(text, face, _most(desk))
    return head.call(face, _read_tensors(head, tensors, (), face, loan), loan)


def raw_layout(raw: bytes, desk: Desk, face: ModelFace) -> tuple[int, Layout, list[tuple[int, bytes]]] | None:
    """Return the size of all before the first tensor, where tensors are behind it, and what is between them.

    None if there is more to a tensor than its bytes. The call was read before, so its head is right.
    """
    if (found := places(raw)) is None:
        return None
    end, tensors = found
    first = tensors[0][0]
    layout: dict[str, tuple[int, int]] = {}
    for one, (begin, at) in zip(_read_head_cached(raw[:end], face, _most(desk)).inputs, tensors, strict=True):
        kind = face.inputs[one.name].datatype
        if one.place is not None or one.datatype != kind or kind in ("BOOL", "BYTES"):
            return None
        layout[one.name] = begin - first, at - begin
    between = [(at - first, raw[at:begin]) for (_, at), (begin, _) in pairwise(tensors)]
    return first, [layout[name] for name in face.inputs], between


def read_parsed_call(request: Any, desk: Desk, loan: Loan) -> Call:
    """Read the call from a ModelInferRequest."""
    face = desk.face(request.model_name, request.model_version)
    head = _read_head(request, face, _most(desk))
    tensors = _read_tensors(head, request.raw_input_contents, request.inputs, face, loan)
    return head.call(face, tensors, loan)


def _most(desk: Desk) -> tuple[int, int]:
    """Return the most examples of a request, and the most bytes of an answer."""
    return desk.limits.examples_per_request, desk.limits.answer_bytes


@lru_cache(maxsize=256)
def _model_of(text: bytes) -> tuple[str, str]:
    """Return the model and the version that a head names."""
    request = parse(text, pb.ModelInferRequest)
    return request.model_name, request.model_version


@lru_cache(maxsize=256)
def _read_head_cached(text: bytes, face: ModelFace, most: tuple[int, int]) -> _Head:
    return _read_head(parse(text, pb.ModelInferRequest), face, most)


def _read_head(request: Any, face: ModelFace, most: tuple[int, int]) -> _Head:
    """Read and check all but the tensors of a request, within the most examples and the largest answer."""
    check_id(request.id)
    check_inputs(face, [one.name for one in request.inputs])
    counts = {
        check_tensor(face.inputs[one.name], one.datatype, tuple(one.shape), most[0]) for one in request.inputs
    }
    if len(counts) > 1:
        raise BadRequest(f"inputs have {sorted(counts)} rows; give all the same number")
    requested = [RequestedOutput(name=one.name, binary=True, place=_place(one)) for one in request.outputs]
    outputs, count = check_outputs(face, requested, binary=True), counts.pop()
    check_answer(face, outputs, count, most[1])
    parameters = read_parameters({name: value_of(value) for name, value in request.parameters.items()})
    return _Head(
        id=request.id,
        count=count,
        inputs=tuple(map(_described, request.inputs)),
        terms=read_terms(face, parameters),
        outputs=outputs,
    )


def _described(one: Any) -> _Tensor:
    return _Tensor(name=one.name, datatype=one.datatype, shape=tuple(one.shape), place=_place(one))


def _read_tensors(
    head: _Head, raws: Sequence[bytes | memoryview], typed: Sequence[Any], face: ModelFace, loan: Loan
) -> tuple[memoryview, ...]:
    """Read every input, in the model's order: from shared memory, raw bytes or typed contents."""
    given = [one.place for one in head.inputs].count(None)
    if raws and len(raws) != given:
        raise BadRequest(f"{len(raws)} raw inputs for {given} inputs; send one for each")
    tensors: dict[str, memoryview] = {}
    at = 0
    for number, one in enumerate(head.inputs):
        tensor = face.inputs[one.name]
        if one.place is not None:
            values = read_shared(tensor, one.place, one.datatype, one.shape, loan)
        else:
            raw = raws[at] if raws else _contents(typed[number], prod(one.shape))
            values, at = read_bytes(tensor, raw, one.datatype, one.shape), at + 1
        tensors[one.name] = values.data.cast("B")
    return tuple([tensors[name] for name in face.inputs])


def _place(tensor: Any) -> Place | None:
    """Return where in shared memory a tensor lies; None if it does not."""
    if not tensor.parameters:
        return None
    given = {name: value_of(value) for name, value in tensor.parameters.items()}
    try:
        place = msgspec.convert(given, Place)
    except msgspec.ValidationError as error:
        raise BadRequest(f"tensor '{tensor.name}': its shared memory is wrong: {error}") from None
    return place if place.shared_memory_region else None


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


def value_of(parameter: Any) -> Parameter:
    """Return the value of a parameter, whatever its type."""
    kind = parameter.WhichOneof("parameter_choice")
    value: Parameter = getattr(parameter, kind) if kind else ""
    return value


def parse(raw: bytes, message: Any) -> Any:
    """Read a message; refuse bytes that are none."""
    try:
        return message.FromString(raw)
    except DecodeError as error:
        raise BadRequest(f"the bytes are not a {message.DESCRIPTOR.name}: {error}") from None
