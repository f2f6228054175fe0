"""Tensors of the Open Inference Protocol: converts JSON and bytes to arrays, and strings to bytes."""

from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slimsched.models.arrays import NUMPY
from slimsched.models.spec import TensorSpec
from slimsched.serving.api.model_face import accepted_types
from slimsched.serving.api.refusal import BadRequest

_flat_integers = msgspec.json.Decoder(list[int])
_flat_floats = msgspec.json.Decoder(list[float])


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
    try:
        decoder = _flat_floats if datatype.startswith("FP") else _flat_integers
        values = np.array(decoder.decode(data))
    except msgspec.DecodeError:
        try:
            values = np.array(msgspec.json.decode(data))
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise BadRequest(f"{where}: data is not an array of numbers ({error})") from None
    except OverflowError as error:
        raise BadRequest(f"{where}: a number is out of range ({error})") from None
    if values.dtype.kind not in "iufb" or (values.dtype.kind == "b" and datatype != "BOOL"):
        raise BadRequest(f"{where}: data must hold numbers only, all rows of equal length")
    if values.ndim > 1 and values.shape != shape:
        raise BadRequest(f"{where}: data is nested as {values.shape}, but shape says {shape}")
    return _checked(tensor, values.reshape(-1), datatype, shape)


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
    return _checked(tensor, values, datatype, shape)


def _checked(tensor: TensorSpec, values: NDArray[Any], datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Check the number and the range of the values; floats for bytes are rounded to 8 bits."""
    where, wanted = f"input '{tensor.name}'", NUMPY[tensor.datatype]
    if values.size != (takes := prod(shape)):
        raise BadRequest(f"{where}: {values.size} numbers given, but shape {list(shape)} takes {takes}")
    if datatype != tensor.datatype:  # floats in [0, 1] for bytes
        numbers = values.astype(np.float32)
        if not ((numbers >= 0) & (numbers <= 1)).all():
            raise BadRequest(f"{where}: FP32 takes values in [0, 1]; divide by 255, or send UINT8")
        return np.rint(numbers * 255).astype(np.uint8).reshape(shape)
    if values.dtype != wanted and wanted.kind in "iu":
        low, high = np.iinfo(wanted).min, np.iinfo(wanted).max
        numbers = values.astype(np.float64)
        if not ((numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))).all():
            raise BadRequest(f"{where}: {datatype} takes whole numbers from {low} to {high}")
    if wanted.kind == "f" and not np.isfinite(values).all():
        raise BadRequest(f"{where}: a value is not finite; send numbers only")
    return values.astype(wanted, copy=False).reshape(shape)


def bytes_tensor(words: list[str]) -> bytes:
    """Encode strings as a BYTES tensor: each has its length in four bytes before it."""
    raw = [word.encode() for word in words]
    return b"".join([len(word).to_bytes(4, "little") + word for word in raw])
