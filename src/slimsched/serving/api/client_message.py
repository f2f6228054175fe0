"""The client's side of Open Inference Protocol v2: JSON followed by raw tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError, SlimError
from slimsched.models.spec import NUMPY

Parameters = dict[str, bool | int | float | str]

_NAMES = {dtype: name for name, dtype in NUMPY.items()}


class AnswerError(SlimError):
    """The response does not follow the protocol."""


class _Output(Struct, frozen=True, kw_only=True):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] = []


class _Answer(Struct, frozen=True, kw_only=True):
    outputs: list[_Output]
    id: str = ""
    parameters: dict[str, Any] = {}


class Answer(Struct, frozen=True, kw_only=True):
    """The outputs by name, with BYTES as lists of strings, and the receipt from the response's parameters."""

    outputs: dict[str, NDArray[Any] | list[str]]
    receipt: Parameters


_decoder = msgspec.json.Decoder(_Answer)


def write_request(
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    parameters: Mapping[str, bool | int | float | str],
) -> tuple[bytes, int]:
    """Return a request body and the length of its JSON; tensors are binary in both directions."""
    raws = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes() for array in inputs.values()]
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _datatype(name, array.dtype),
            "parameters": {"binary_data_size": len(raw)},
        }
        for (name, array), raw in zip(inputs.items(), raws, strict=True)
    ]
    requested = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
    message: dict[str, Any] = {"inputs": tensors, "parameters": dict(parameters)}
    message |= (
        {"outputs": requested} if requested else {"parameters": {**parameters, "binary_data_output": True}}
    )
    head = msgspec.json.encode(message)
    return b"".join([head, *raws]), len(head)


def read_answer(body: bytes, json_bytes: int | None) -> Answer:
    """Read the outputs from a response body; `json_bytes` is the length of its JSON if raw tensors follow."""
    try:
        answer = _decoder.decode(body if json_bytes is None else memoryview(body)[:json_bytes])
        outputs: dict[str, NDArray[Any] | list[str]] = {}
        at = len(body) if json_bytes is None else json_bytes
        for one in answer.outputs:
            size = one.parameters.get("binary_data_size")
            if size is None:
                outputs[one.name] = _from_json(one)
            else:
                outputs[one.name] = _from_bytes(one, body[at : at + size])
                at += size
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise AnswerError(f"the server's answer is not Open Inference Protocol v2: {error}") from None
    return Answer(outputs=outputs, receipt=answer.parameters)


def read_error(body: bytes) -> str:
    """Return the reason that a refusal gives."""
    try:
        return str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace") or "no reason given"


def classes_of(answer: Answer) -> NDArray[np.int64]:
    """Return one class per example: an integer output as it is, or the largest score in each row."""
    for values in answer.outputs.values():
        if not isinstance(values, list):
            scores = values.dtype.kind not in "iu"
            best = values.reshape(len(values), -1).argmax(axis=1) if scores else values.reshape(-1)
            classes: NDArray[np.int64] = best.astype(np.int64)
            return classes
    raise AnswerError(f"no output with classes or scores among {', '.join(answer.outputs) or 'none'}")


def _datatype(name: str, dtype: np.dtype[Any]) -> str:
    """Name an element type as the protocol does."""
    try:
        return _NAMES[dtype.newbyteorder("<")]
    except KeyError:
        raise ConfigError(f"input '{name}' is {dtype}; give one of {', '.join(NUMPY)}") from None


def _from_json(one: _Output) -> NDArray[Any] | list[str]:
    if one.datatype == "BYTES":
        return [str(word) for word in one.data]
    return np.array(one.data, dtype=NUMPY[one.datatype]).reshape(one.shape)


def _from_bytes(one: _Output, raw: bytes) -> NDArray[Any] | list[str]:
    if one.datatype != "BYTES":
        return np.frombuffer(raw, NUMPY[one.datatype]).reshape(one.shape)
    words, at = [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        words.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return words
