"""Inference calls as protocol buffers: reads requests and writes answers.

Building and parsing message objects takes most of the time of a small call, so heads are parsed once, and
answers are put together from pieces that are kept.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from struct import Struct as Packing
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from slimsched.models.spec import NUMPY
from slimsched.serving.api.calls import (
    Call,
    CallHead,
    GivenInput,
    InferenceResult,
    Layout,
    Loan,
    ModelApi,
    OutputSpan,
    Parameter,
    RequestedOutput,
    check_head,
    pack,
    read_bytes,
    read_parameters,
    read_shared,
)
from slimsched.serving.api.limits import BadRequest
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.api.service import CallHandler
from slimsched.serving.api.shared_memory import RegionPart, filled, write_parts

# -- Splits an inference request into its head and the raw tensors that follow it, without parsing either.
#
# Clients write the fields of a message in the order of their numbers, so raw tensors are at the end. A client
# sends the same head again and again: it can be parsed once. Whatever looks different is left to the parser.

LONGEST_HEAD_BYTES = 1024
MOST_TENSORS = 64

_HEAD_TAGS = frozenset((field << 3) | 2 for field in range(1, 7))
_RAW_TAG = (7 << 3) | 2


def places(raw: bytes) -> tuple[int, list[tuple[int, int]]] | None:
    """Return where the head ends, and where each raw tensor begins and ends.

    None if the message must be parsed as a whole.
    """
    size = len(raw)
    at = 0
    while at < size and raw[at] in _HEAD_TAGS:
        at = _skip(raw, at + 1)[1]
        if at > LONGEST_HEAD_BYTES:
            return None
    end = at
    tensors: list[tuple[int, int]] = []
    while at < size and raw[at] == _RAW_TAG and len(tensors) < MOST_TENSORS:
        begin, at = _skip(raw, at + 1)
        tensors.append((begin, at))
    return (end, tensors) if at == size and tensors else None


def _skip(raw: bytes, at: int) -> tuple[int, int]:
    """Read the length of a field at this place; return where the field begins and ends."""
    length = shift = 0
    for place in range(at, min(at + 4, len(raw))):
        byte = raw[place]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return place + 1, place + 1 + length
        shift += 7
    return len(raw), len(raw) + 1  # no length, or too large a one: beyond the end


# -- Writes the answer to an inference call as the bytes of a ModelInferResponse.
#
# A message object with a dozen parameters costs several times as much as these few lines: most of an answer
# is the same as in the one before, so its pieces are kept.

LONGEST_KEPT = 256
"""Texts up to this length are kept as they are written."""

# the fields of ModelInferResponse, of its outputs and of an entry of a map, as inference.proto numbers them
NAME, VERSION, ID, PARAMETERS, OUTPUTS, RAW = (bytes([number << 3 | 2]) for number in range(1, 7))
OUTPUT_NAME, DATATYPE, SHAPE, OUTPUT_PARAMETERS = (bytes([number << 3 | 2]) for number in range(1, 5))
KEY, VALUE = (bytes([number << 3 | 2]) for number in (1, 2))
BOOL, INT64, STRING, DOUBLE = (bytes([number]) for number in (1 << 3, 2 << 3, 3 << 3 | 2, 4 << 3 | 1))

LONGEST_VARINT = 10

_double = Packing("<d").pack


def write_answer(call: Call, answered: InferenceResult) -> bytes:
    """Return the result as a ModelInferResponse with raw tensors."""
    api = call.api
    parts = [_named(api.name, api.version)]
    if call.id:
        parts.append(_field(ID, call.id.encode()))
    for name, value in answered.parameters.items():
        parts.append(_entry(PARAMETERS, name, value))
    shared: list[tuple[RegionPart, bytes]] = []
    raws: list[bytes] = []
    for one in call.outputs:
        kind, shape, values = api.tensor(one, answered.outputs)
        output, raw = _described_output(one.name, kind, shape), pack(values)
        if one.place is not None:
            part = call.parts[one.name]
            part.check(f"output '{one.name}'", len(raw))
            shared.append((part, raw))
            places = [_entry(OUTPUT_PARAMETERS, *pair) for pair in filled(one.place, len(raw)).items()]
            output, raw = b"".join([output, *places]), b""  # clients count on one entry for each output
        parts.append(_field(OUTPUTS, output))
        raws.append(_field(RAW, raw))
    if shared:
        write_parts(shared)
    return b"".join(parts + raws)


def write_around(
    call: Call, parameters: dict[str, Parameter], shapes: Sequence[tuple[int, ...]]
) -> tuple[bytes, bytes, bytes]:
    """Return an answer around the eight bytes of its network time and the ten of its request's number.

    Ten bytes are more than most numbers need, and legal. The outputs, of these shapes, follow as raw tensors.
    """
    texts, api = [_named(call.api.name, call.api.version)], call.api
    if call.id:
        texts[-1] += _field(ID, call.id.encode())
    for name, value in parameters.items():
        if name == "network_ms":
            texts[-1] += _before_double(PARAMETERS, name)
            texts.append(b"")
        elif name == "request":
            texts[-1] += _mapped(PARAMETERS, name, INT64 + bytes(LONGEST_VARINT))[:-LONGEST_VARINT]
            texts.append(b"")
        else:
            texts[-1] += _entry(PARAMETERS, name, value)
    for one, shape in zip(call.outputs, shapes, strict=True):
        texts[-1] += _field(OUTPUTS, _described_output(one.name, api.datatype(one.name), shape))
    before, between, after = texts
    return before, between, after


def before_raw(size: int) -> bytes:
    """Return what precedes the bytes of an output."""
    return RAW + _varint(size)


@lru_cache(maxsize=64)
def _named(name: str, version: str) -> bytes:
    """Write which model answers; a text that is empty is left out, as protocol buffers do."""
    fields = ((NAME, name), (VERSION, version))
    return b"".join(_field(tag, text.encode()) for tag, text in fields if text)


@lru_cache(maxsize=256)
def _described_output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """Write the name, type and shape of an output."""
    sizes = b"".join(map(_varint, shape))
    fields = ((OUTPUT_NAME, name.encode()), (DATATYPE, datatype.encode()), (SHAPE, sizes))
    return b"".join(_field(tag, raw) for tag, raw in fields)


def _entry(tag: bytes, name: str, value: Parameter) -> bytes:
    """Write a parameter, as an entry of a map."""
    match value:
        case float():
            return _before_double(tag, name) + _double(value)
        case str():
            return (_text if len(value) <= LONGEST_KEPT else _text.__wrapped__)(tag, name, value)
        case bool():
            return _mapped(tag, name, BOOL + bytes([value]))
        case int():
            return _mapped(tag, name, INT64 + _varint(value))


@lru_cache(maxsize=256)
def _before_double(tag: bytes, name: str) -> bytes:
    """Write a parameter but for its number, which has always the same length."""
    return _mapped(tag, name, DOUBLE + bytes(8))[:-8]


@lru_cache(maxsize=1024)
def _text(tag: bytes, name: str, value: str) -> bytes:
    return _mapped(tag, name, _field(STRING, value.encode()))


def _mapped(tag: bytes, name: str, value: bytes) -> bytes:
    return _field(tag, _field(KEY, name.encode()) + _field(VALUE, value))


def _field(tag: bytes, raw: bytes) -> bytes:
    """Write a field that has a length."""
    return b"".join((tag, _varint(len(raw)), raw))


def _varint(number: int) -> bytes:
    """Write a whole number in groups of seven bits; a negative one as a complement of 64 bits."""
    if 0 <= number < 0x80:
        return bytes((number,))
    number &= 2**64 - 1
    raw = bytearray()
    while number >= 0x80:
        raw.append(number & 0x7F | 0x80)
        number >>= 7
    raw.append(number)
    return bytes(raw)


pb: Any = inference_pb2  # mypy cannot see its classes: they are built at import

CONTENTS = {
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}
"""Where a tensor's numbers are when they are not raw; smaller integers share a field by their sign."""


def read_call(raw: bytes, handler: CallHandler, loan: Loan) -> Call:
    """Read the call from the bytes of a ModelInferRequest; its tensors stay where they are."""
    if (found := places(raw)) is None:
        return read_parsed_call(parse(raw, pb.ModelInferRequest), handler, loan)
    (end, tensors), view = found, memoryview(raw)
    text = raw[:end]
    api = handler.api(*_model_of(text))
    head = _read_head_cached(text, api, handler.limits.most)
    return head.call(api, _read_tensors(head, [view[begin:at] for begin, at in tensors], (), api, loan), loan)


def raw_layout(
    raw: bytes, handler: CallHandler, api: ModelApi
) -> tuple[int, Layout, list[tuple[int, bytes]]] | None:
    """Return the size of all before the first tensor, where tensors are behind it, and what is between them.

    None if there is more to a tensor than its bytes. The call was read before, so its head is right.
    """
    if (found := places(raw)) is None:
        return None
    end, tensors = found
    first = tensors[0][0]
    layout: dict[str, tuple[int, int]] = {}
    for one, (begin, at) in zip(
        _read_head_cached(raw[:end], api, handler.limits.most).inputs, tensors, strict=True
    ):
        if not one.is_plain(api):
            return None
        layout[one.name] = begin - first, at - begin
    between = [(at - first, raw[at:begin]) for (_, at), (begin, _) in pairwise(tensors)]
    return first, [layout[name] for name in api.inputs], between


def read_parsed_call(request: Any, handler: CallHandler, loan: Loan) -> Call:
    """Read the call from a ModelInferRequest."""
    api = handler.api(request.model_name, request.model_version)
    head = _read_head(request, api, handler.limits.most)
    tensors = _read_tensors(head, request.raw_input_contents, request.inputs, api, loan)
    return head.call(api, tensors, loan)


@lru_cache(maxsize=256)
def _model_of(text: bytes) -> tuple[str, str]:
    """Return the model and the version that a head names."""
    request = parse(text, pb.ModelInferRequest)
    return request.model_name, request.model_version


@lru_cache(maxsize=256)
def _read_head_cached(text: bytes, api: ModelApi, most: tuple[int, int]) -> CallHead:
    return _read_head(parse(text, pb.ModelInferRequest), api, most)


def _read_head(request: Any, api: ModelApi, most: tuple[int, int]) -> CallHead:
    """Read and check all but the tensors of a request, within the most examples and the largest answer."""
    inputs = [
        GivenInput(name=one.name, datatype=one.datatype, shape=tuple(one.shape), place=_span(one).place)
        for one in request.inputs
    ]
    asked = [(one.name, _span(one)) for one in request.outputs]
    requested = [
        RequestedOutput(name=name, binary=True, place=span.place, best=span.classification)
        for name, span in asked
    ]
    parameters = read_parameters({name: value_of(value) for name, value in request.parameters.items()})
    return check_head(api, most, request.id, inputs, requested, parameters, binary=True)


def _read_tensors(
    head: CallHead, raws: Sequence[bytes | memoryview], typed: Sequence[Any], api: ModelApi, loan: Loan
) -> tuple[memoryview, ...]:
    """Read every input, in the model's order: from shared memory, raw bytes or typed contents."""
    given = [one.place for one in head.inputs].count(None)
    if raws and len(raws) != given:
        raise BadRequest(f"{len(raws)} raw inputs for {given} inputs; send one for each")
    tensors: dict[str, memoryview] = {}
    at = 0
    for number, one in enumerate(head.inputs):
        tensor = api.inputs[one.name]
        if one.place is not None:
            values = read_shared(tensor, one.place, one.datatype, one.shape, loan)
        else:
            raw = raws[at] if raws else _contents(typed[number], prod(one.shape))
            values, at = read_bytes(tensor, raw, one.datatype, one.shape), at + 1
        tensors[one.name] = values.data.cast("B")
    return tuple([tensors[name] for name in api.inputs])


_NO_SPAN = OutputSpan()


def _span(tensor: Any) -> OutputSpan:
    """Return what the parameters of a tensor say: where in shared memory it lies, how it is to be written."""
    if not tensor.parameters:
        return _NO_SPAN
    given = {name: value_of(value) for name, value in tensor.parameters.items()}
    try:
        return msgspec.convert(given, OutputSpan)
    except msgspec.ValidationError as error:
        raise BadRequest(f"tensor '{tensor.name}': its parameters are wrong: {error}") from None


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
