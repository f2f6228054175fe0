"""Tensors of the Open Inference Protocol: converts JSON and bytes to arrays, and strings to bytes."""

from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slimsched.serving.api.refusal import BadRequest

PIXELS: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("u1"), "FP32": np.dtype("<f4")}
"""The types an image may have: bytes, or floats in [0, 1]."""

_flat_integers = msgspec.json.Decoder(list[int])
_flat_floats = msgspec.json.Decoder(list[float])


def pixels_from_json(data: bytes, datatype: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read images from JSON numbers, either flat or nested as the shape says."""
    try:
        decoder = _flat_integers if datatype == "UINT8" else _flat_floats
        values = np.array(decoder.decode(data))
    except msgspec.DecodeError:
        try:
            values = np.array(msgspec.json.decode(data))
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise BadRequest(f"input 'images': data is not an array of numbers ({error})") from None
    except OverflowError as error:
        raise BadRequest(f"input 'images': a number is out of range ({error})") from None
    if values.dtype.kind not in "iuf":
        raise BadRequest("input 'images': data must hold numbers only, all rows of equal length")
    if values.ndim > 1 and values.shape != shape:
        raise BadRequest(f"input 'images': data is nested as {values.shape}, but shape says {shape}")
    return _pixels(values.reshape(-1), datatype, shape)


def pixels_from_bytes(data: memoryview | bytes, datatype: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read images from little-endian raw bytes."""
    kind = PIXELS[datatype]
    takes = prod(shape) * kind.itemsize
    if len(data) != takes:
        raise BadRequest(
            f"input 'images': {len(data)} bytes given, but {datatype} of shape {list(shape)} takes {takes}"
        )
    values: NDArray[Any] = np.frombuffer(data, kind)
    return _pixels(values, datatype, shape)


def _pixels(values: NDArray[Any], datatype: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Check the range of the pixels; floats are rounded to the 8 bits that images have internally."""
    if values.size != (takes := prod(shape)):
        raise BadRequest(
            f"input 'images': {values.size} numbers given, but shape {list(shape)} takes {takes}"
        )
    if datatype == "UINT8":
        if values.dtype != np.uint8:
            numbers = values.astype(np.float64)
            if not ((numbers >= 0) & (numbers <= 255) & (numbers == np.floor(numbers))).all():
                raise BadRequest("input 'images': UINT8 takes whole numbers from 0 to 255")
        return values.astype(np.uint8, copy=False).reshape(shape)
    numbers = values.astype(np.float32)
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise BadRequest("input 'images': FP32 takes pixels in [0, 1]; divide by 255, or send UINT8")
    return np.rint(numbers * 255).astype(np.uint8).reshape(shape)


def bytes_tensor(words: list[str]) -> bytes:
    """Encode strings as a BYTES tensor: each has its length in four bytes before it."""
    raw = [word.encode() for word in words]
    return b"".join([len(word).to_bytes(4, "little") + word for word in raw])
