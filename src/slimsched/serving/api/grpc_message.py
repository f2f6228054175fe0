"""Inference calls and answers as protocol buffers."""

from math import prod
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from slimsched.models.arrays import NUMPY
from slimsched.serving.api.call import (
    Call,
    RequestedOutput,
    check_answer,
    check_id,
    check_inputs,
    check_outputs,
    read_terms,
)
from slimsched.serving.api.desk import Desk
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.api.receipt import InferenceResult
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.request_parameters import Parameter, read_parameters
from slimsched.serving.api.tensor import bytes_tensor, check_tensor, read_bytes

pb: Any = inference_pb2  # mypy cannot see its classes: they are built at import

CONTENTS = {
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}
"""Where a tensor's numbers are when they are not raw; smaller integers share a field by their sign."""


def read_call(request: Any, desk: Desk) -> Call:
    """Read the call from a ModelInferRequest, whose tensors are raw bytes or typed contents."""
    face = desk.face(request.model_name, request.model_version)
    check_id(request.id)
    check_inputs(face, [one.name for one in request.inputs])
    raws = list(request.raw_input_contents)
    if raws and len(raws) != len(request.inputs):
        raise BadRequest(f"{len(raws)} raw inputs for {len(request.inputs)} inputs; send one for each")
    tensors: dict[str, memoryview] = {}
    counts: set[int] = set()
    for place, one in enumerate(request.inputs):
        tensor, shape = face.inputs[one.name], tuple(one.shape)
        counts.add(check_tensor(tensor, one.datatype, shape, desk.limits.examples_per_request))
        raw = raws[place] if raws else _contents(one, prod(shape))
        tensors[one.name] = read_bytes(tensor, raw, one.datatype, shape).data.cast("B")
    if len(counts) > 1:
        raise BadRequest(f"inputs have {sorted(counts)} rows; give all the same number")
    requested = [RequestedOutput(name=output.name, binary=True) for output in request.outputs]
    outputs, count = check_outputs(face, requested, binary=True), counts.pop()
    check_answer(face, outputs, count, desk.limits.answer_bytes)
    parameters = read_parameters({name: value_of(value) for name, value in request.parameters.items()})
    return Call(
        id=request.id,
        face=face,
        inputs=tuple(tensors[name] for name in face.inputs),
        count=count,
        terms=read_terms(face, parameters),
        outputs=outputs,
    )


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


def write_answer(call: Call, answered: InferenceResult) -> Any:
    """Return the result as a ModelInferResponse with raw tensors."""
    face = call.face
    response = pb.ModelInferResponse(model_name=face.name, model_version=face.version, id=call.id)
    for name, value in answered.parameters.items():
        _set(response.parameters[name], value)
    for one in call.outputs:
        kind, values = face.tensor(one.name, answered.outputs)
        shape = [len(values)] if isinstance(values, list) else list(values.shape)
        response.outputs.add(name=one.name, datatype=kind, shape=shape)
        raw = bytes_tensor(values) if isinstance(values, list) else values.tobytes()
        response.raw_output_contents.append(raw)
    return response


def value_of(parameter: Any) -> Parameter:
    """Return the value of a parameter, whatever its type."""
    kind = parameter.WhichOneof("parameter_choice")
    value: Parameter = getattr(parameter, kind) if kind else ""
    return value


def _set(parameter: Any, value: Parameter) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(parameter, kinds[type(value)], value)


def parse(raw: bytes, message: Any) -> Any:
    """Read a message; refuse bytes that are none."""
    try:
        return message.FromString(raw)
    except DecodeError as error:
        raise BadRequest(f"the bytes are not a {message.DESCRIPTOR.name}: {error}") from None
