"""Tensors of the Open Inference Protocol: converts JSON and bytes to arrays, and strings to bytes."""

import re
from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import NUMPY, TensorSpec
from slimsched.serving.api.json_body import read_body
from slimsched.serving.api.model_face import accepted_types
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.shared_region import Place


def check_tensor(tensor: TensorSpec, datatype: str, shape: tuple[int, ...], most: int) -> int:
    """Refuse a tensor of the wrong type or shape; return its number of rows."""
    if datatype not in (accepted := accepted_types(tensor)):
        raise BadRequest(
            f"input '{tensor.name}': datatype '{datatype}' is not accepted; send {' or '.join(accepted)}"
        )
    if len(shape) != 1 + len(tensor.shape) or shape[1:] != tensor.shape:
        wanted = ", ".join(["n", *map(str, tensor.shape)])
        raise BadRequest(f"input '{tensor.name}': shape {list(shape)} does not fit; send [{wanted}]")
    if not 1 <= shape[0] <= most:
        raise BadRequest(f"input '{tensor.name}': {shape[0]} examples in one request; send 1 to {most}")
    return shape[0]


def read_json(tensor: TensorSpec, data: bytes, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read a tensor from JSON numbers, either flat or nested as the shape says."""
    where = f"input '{tensor.name}'"
    given, takes = data.count(b",") + 1, prod(shape)  # one comma less than numbers, however they are nested
    if given != takes:
        raise BadRequest(f"{where}: {given} values given, but shape {list(shape)} takes {takes}")
    values = _nested(data, datatype, shape, where) if _NESTED.match(data) else _flat(data, datatype, where)
    if values.ndim > 1 and values.shape != shape:
        raise BadRequest(f"{where}: data is nested as {values.shape}, but shape says {shape}")
    return _checked(tensor, values.reshape(-1), datatype, shape)


_NESTED = re.compile(rb"\s*\[\s*\[")
_POINT = re.compile(rb"[.eE]")


def _flat(data: bytes, datatype: str, where: str) -> NDArray[Any]:
    """Read a list of numbers; whole ones may be written with a point."""
    whole: np.dtype[Any] = np.dtype(np.uint64 if datatype == "UINT64" else np.int64)
    kind: Any = float
    if datatype == "BOOL":
        kind, whole = bool, np.dtype(np.bool_)
    elif not datatype.startswith("FP") and not _POINT.search(data):
        kind = int
    numbers = read_body(_decoder(1, kind), data, f"as {where} needs it")
    try:
        return np.fromiter(numbers, np.float64 if kind is float else whole, len(numbers))
    except OverflowError:
        raise BadRequest(f"{where}: a number is out of range for {datatype}") from None


def _nested(data: bytes, datatype: str, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """Read lists in lists, as deep as the shape says."""
    kind: Any = bool if datatype == "BOOL" else float if datatype.startswith("FP") else int | float
    rows = read_body(_decoder(len(shape), kind), data, f"as {where} needs it")
    try:
        values: NDArray[Any] = np.array(rows)
    except (ValueError, OverflowError):
        raise BadRequest(f"{where}: data must hold numbers only, all rows of equal length") from None
    if values.dtype.kind not in "iufb":
        raise BadRequest(f"{where}: a number is out of range for {datatype}")
    return values


@lru_cache(maxsize=64)
def _decoder(depth: int, kind: Any) -> "msgspec.json.Decoder[list[Any]]":
    """A decoder for values of one kind in nested lists, which takes nothing else."""
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def read_bytes(
    tensor: TensorSpec, data: memoryview | bytes, datatype: str, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Read a tensor from little-endian raw bytes."""
    kind = NUMPY[datatype]
    takes = prod(shape) * kind.itemsize
    if len(data) != takes:
        raise BadRequest(
            f"input '{tensor.name}': {len(data)} bytes given, but {datatype} of shape {list(shape)} "
            f"takes {takes}"
        )
    values: NDArray[Any] = np.frombuffer(data, kind)
    if kind.kind == "b" and np.frombuffer(data, np.uint8).max() > 1:
        raise BadRequest(f"input '{tensor.name}': BOOL takes the bytes 0 and 1")
    return _checked(tensor, values, datatype, shape)


def _checked(tensor: TensorSpec, values: NDArray[Any], datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Check the number and the range of the values; floats for bytes are rounded to 8 bits."""
    where, wanted = f"input '{tensor.name}'", NUMPY[tensor.datatype]
    if values.size != (takes := prod(shape)):
        raise BadRequest(f"{where}: {values.size} numbers given, but shape {list(shape)} takes {takes}")
    if datatype != tensor.datatype:  # floats in [0, 1] for bytes
        numbers = _cast(values, np.dtype(np.float32))
        if not ((numbers >= 0) & (numbers <= 1)).all():
            raise BadRequest(f"{where}: FP32 takes values in [0, 1]; divide by 255, or send UINT8")
        pixels: NDArray[Any] = np.rint(numbers * 255).astype(np.uint8)
        return pixels.reshape(shape)
    if values.dtype != wanted and wanted.kind in "iu":
        _check_whole(values, wanted, where)
    result = _cast(values, wanted)
    if wanted.kind == "f" and not np.isfinite(result).all():
        raise BadRequest(f"{where}: a value is not finite as {datatype}; send numbers only")
    return result.reshape(shape)


def _cast(values: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:
    """Return the values as another type; those that are too large become infinite."""
    if values.dtype == wanted:
        return values
    with np.errstate(over="ignore"):
        return values.astype(wanted)


def _check_whole(values: NDArray[Any], wanted: np.dtype[Any], where: str) -> None:
    """Refuse numbers that are not whole, or out of an integer type's range."""
    low, high = np.iinfo(wanted).min, np.iinfo(wanted).max
    is_in_range = (values >= low) & (values <= high)
    if values.dtype.kind == "f":
        is_in_range &= (values == np.floor(values)) & (values < float(high) + 1.0)
    if not is_in_range.all():
        raise BadRequest(f"{where}: {wanted.name.upper()} takes whole numbers from {low} to {high}")


def read_shared(
    tensor: TensorSpec, place: Place, datatype: str, shape: tuple[int, ...], loan: Loan
) -> NDArray[Any]:
    """Read a tensor from a client's shared memory; its size is checked before it is copied."""
    what, takes = f"input '{tensor.name}'", prod(shape) * NUMPY[datatype].itemsize
    part = loan.find(place, what)
    if part.byte_size != takes:
        raise BadRequest(
            f"{what}: shared_memory_byte_size is {part.byte_size}, but {datatype} of shape {list(shape)} "
            f"takes {takes}"
        )
    return read_bytes(tensor, loan.read(part), datatype, shape)


def pack(values: NDArray[Any] | list[str]) -> bytes:
    """Encode an output as raw bytes."""
    return bytes_tensor(values) if isinstance(values, list) else values.tobytes()


def bytes_tensor(words: list[str]) -> bytes:
    """Encode strings as a BYTES tensor: each has its length in four bytes before it."""
    raw = [word.encode() for word in words]
    return b"".join([len(word).to_bytes(4, "little") + word for word in raw])
