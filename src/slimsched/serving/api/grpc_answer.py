"""Writes the answer to an inference call as the bytes of a ModelInferResponse.

A message object with a dozen parameters costs several times as much as these few lines: most of an answer is
the same as in the one before, so its pieces are kept.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from slimsched.serving.api.call import Call
from slimsched.serving.api.receipt import InferenceResult
from slimsched.serving.api.request_parameters import Parameter
from slimsched.serving.api.shared_region import RegionPart, filled, write_parts
from slimsched.serving.api.tensor import pack

LONGEST_KEPT = 256
"""Texts up to this length are kept as they are written."""

# the fields of ModelInferResponse, of its outputs and of an entry of a map, as inference.proto numbers them
NAME, VERSION, ID, PARAMETERS, OUTPUTS, RAW = (bytes([number << 3 | 2]) for number in range(1, 7))
OUTPUT_NAME, DATATYPE, SHAPE, OUTPUT_PARAMETERS = (bytes([number << 3 | 2]) for number in range(1, 5))
KEY, VALUE = (bytes([number << 3 | 2]) for number in (1, 2))
BOOL, INT64, STRING, DOUBLE = (bytes([number]) for number in (1 << 3, 2 << 3, 3 << 3 | 2, 4 << 3 | 1))

LONGEST_VARINT = 10

_double = Struct("<d").pack


def write_answer(call: Call, answered: InferenceResult) -> bytes:
    """Return the result as a ModelInferResponse with raw tensors."""
    face = call.face
    parts = [_named(face.name, face.version)]
    if call.id:
        parts.append(_field(ID, call.id.encode()))
    for name, value in answered.parameters.items():
        parts.append(_entry(PARAMETERS, name, value))
    shared: list[tuple[RegionPart, bytes]] = []
    raws: list[bytes] = []
    for one in call.outputs:
        kind, values = face.tensor(one.name, answered.outputs)
        shape = (len(values),) if isinstance(values, list) else values.shape
        output, raw = _described(one.name, kind, shape), pack(values)
        if one.place is not None:
            part = call.parts[one.name]
            part.check(f"output '{one.name}'", len(raw))
            shared.append((part, raw))
            places = [_entry(OUTPUT_PARAMETERS, *pair) for pair in filled(one.place, len(raw)).items()]
            output, raw = b"".join([output, *places]), b""  # clients count on one entry for each output
        parts.append(_field(OUTPUTS, output))
        raws.append(_field(RAW, raw))
    write_parts(shared)
    return b"".join(parts + raws)


def write_around(
    call: Call, parameters: dict[str, Parameter], shapes: Sequence[tuple[int, ...]]
) -> tuple[bytes, bytes, bytes]:
    """Return an answer around the eight bytes of its network time and the ten of its request's number.

    Ten bytes are more than most numbers need, and legal. The outputs, of these shapes, follow as raw tensors.
    """
    texts, face = [_named(call.face.name, call.face.version)], call.face
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
        texts[-1] += _field(OUTPUTS, _described(one.name, face.datatype(one.name), shape))
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
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
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
