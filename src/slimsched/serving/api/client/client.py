"""A Python client: `Client("http://127.0.0.1:8000").classify(images, min_accuracy=75).labels`."""

import http.client
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack, cast
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError, SlimError
from slimsched.models.spec import DEFAULT_MODEL, NUMPY
from slimsched.serving.api.limits import checked

# -- The client's side of Open Inference Protocol v2: JSON followed by raw tensors.

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
    parameters: dict[str, Any] = {}


class ServerAnswer(Struct, frozen=True, kw_only=True):
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


def read_answer(body: bytes, json_bytes: int | None) -> ServerAnswer:
    """Read the outputs from a response body; `json_bytes` is the length of its JSON if raw tensors follow."""
    try:
        answer = _decoder.decode(body if json_bytes is None else memoryview(body)[:json_bytes])
        outputs: dict[str, NDArray[Any] | list[str]] = {}
        at = len(body) if json_bytes is None else json_bytes
        for one in answer.outputs:
            size = one.parameters.get("binary_data_size")
            if size is not None:
                outputs[one.name] = _from_bytes(one, body[at : at + size])
                at += size
            elif one.datatype == "BYTES":
                outputs[one.name] = [str(word) for word in one.data]
            else:
                outputs[one.name] = np.array(one.data, dtype=NUMPY[one.datatype]).reshape(one.shape)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise AnswerError(f"the server's answer is not Open Inference Protocol v2: {error}") from None
    return ServerAnswer(outputs=outputs, receipt=answer.parameters)


def read_error(body: bytes) -> str:
    """Return the reason that a refusal gives."""
    try:
        return str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace") or "no reason given"


def classes_of(answer: ServerAnswer) -> NDArray[np.int64]:
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


def _from_bytes(one: _Output, raw: bytes) -> NDArray[Any] | list[str]:
    if one.datatype != "BYTES":
        return np.frombuffer(raw, NUMPY[one.datatype]).reshape(one.shape)
    words, at = [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        words.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return words


URL = "http://127.0.0.1:8000"


def server_at(url: str, ca_file: str | None) -> tuple[str, int, ssl.SSLContext | None]:
    """Return host and port of a server's address, and how to check its certificate with https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"'{url}' is not a server address; write it as {URL}")
    tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    return parts.hostname, parts.port or (443 if tls else 80), tls


class ServerRefusedError(SlimError):
    """The server refused the request.

    `status` is the HTTP status. `retry_after_s` says when to try again, if the server said so.
    """

    def __init__(self, status: int, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"the server refused ({status}): {why}")
        self.status, self.retry_after_s = status, retry_after_s


class UnreachableError(SlimError):
    """No server answers at this address."""


class Classification(Struct, frozen=True, kw_only=True):
    """The class, label and logits (n, classes) of each image, and a receipt that says what they cost."""

    classes: NDArray[np.int64]
    labels: list[str]
    logits: NDArray[np.float32]
    receipt: Parameters

    def confidence(self) -> NDArray[np.float64]:
        """Return the softmax probability of each image's class."""
        shifted = self.logits.astype(np.float64) - self.logits.max(axis=1, keepdims=True)
        shares: NDArray[np.float64] = 1.0 / np.exp(shifted).sum(axis=1)
        return shares


class Asked(TypedDict, total=False):
    """What a call may ask for besides its tensors; None is as if it were left out.

    `plan` states how to run: '0.5' takes that choice in every segment, '0.25,0.5,0.75,1.0' names one for
    each. The other terms are limits within which the server chooses.
    """

    plan: str | None
    min_accuracy: float | None
    deadline_ms: float | None
    priority: int | None
    max_energy_mj: float | None


class Client:
    """A client with one kept-alive connection; do not share it between threads.

    Without a `model`, it asks the shipped one, or the server's only one.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        token: str = "",
        model: str = "",
        timeout_s: float = 60.0,
        ca_file: str | None = None,
    ) -> None:
        host, port, tls = server_at(url, ca_file)
        self._url, self._model = url, model
        self._tensors: dict[str, Any] | None = None  # what the model takes and gives, once asked for
        self._headers = {"authorization": f"Bearer {checked(token)}"} if token else {}
        self._connection: http.client.HTTPConnection
        if tls is not None:
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        self._connection.close()

    def is_ready(self) -> bool:
        """Return whether the server accepts requests now."""
        try:
            self._ask("GET", "/v2/health/ready")
        except (UnreachableError, ServerRefusedError):
            return False
        return True

    def metadata(self) -> dict[str, Any]:
        """Return the model's inputs and outputs."""
        _, raw = self._ask("GET", f"/v2/models/{self._asked()}")
        return cast(dict[str, Any], msgspec.json.decode(raw))

    def goal(self) -> dict[str, Any]:
        """Return the server's goal, and whether each of its limits is kept."""
        return cast(dict[str, Any], msgspec.json.decode(self._ask("GET", "/v2/goal")[1]))

    def classify(self, images: NDArray[Any], **terms: Unpack[Asked]) -> Classification:
        """Classify images (n, 3, height, width), or one image, as uint8 or as float32 in [0, 1].

        The terms are those of `Asked`.
        """
        batch = images[None] if images.ndim == 3 else images
        if batch.dtype not in (np.uint8, np.float32):
            raise ConfigError(f"images are {batch.dtype}; give uint8, or float32 in [0, 1]")
        metadata = self.metadata() if self._tensors is None else self._tensors
        self._tensors = metadata
        scores = next(one["name"] for one in metadata["outputs"] if one["datatype"].startswith("FP"))
        known = {one["name"] for one in metadata["outputs"]}
        names = [name for name in ("classes", scores, "labels") if name in known]
        answer = self.infer({metadata["inputs"][0]["name"]: batch}, outputs=names, **terms)
        return Classification(
            classes=classes_of(answer),
            labels=cast(list[str], answer.outputs.get("labels", [])),
            logits=cast("NDArray[np.float32]", answer.outputs[scores]),
            receipt=answer.receipt,
        )

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], *, outputs: Sequence[str] = (), **terms: Unpack[Asked]
    ) -> ServerAnswer:
        """Run any model: its input tensors by name, each with one row per example; all outputs by default.

        The terms are those of `Asked`.
        """
        if unknown := terms.keys() - Asked.__annotations__.keys():
            raise TypeError(
                f"{', '.join(unknown)}: no such term; there are {', '.join(Asked.__annotations__)}"
            )
        asked: Any = {name: value for name, value in terms.items() if value is not None}
        body, json_bytes = write_request(inputs, outputs, asked)
        headers = {"inference-header-content-length": str(json_bytes)}
        path = f"/v2/models/{self._asked()}/infer"
        response, raw = self._ask("POST", path, body, headers)
        length = response.getheader("inference-header-content-length")
        return read_answer(raw, None if length is None else int(length))

    def _asked(self) -> str:
        """The name of the model to ask; the server is asked for it once where the user gave none."""
        if not self._model:
            names = msgspec.json.decode(self._ask("GET", "/v2")[1]).get("models", [DEFAULT_MODEL])
            if DEFAULT_MODEL not in names and len(names) != 1:
                raise ConfigError(
                    f"this server has {' and '.join(names) or 'no model'}: say which model to ask"
                )
            self._model = names[0] if len(names) == 1 else DEFAULT_MODEL
        return self._model

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send one request and return the response; retry if a kept-alive connection was closed meanwhile.

        Raises what the server says if it refuses.
        """
        kept = self._connection.sock is not None
        try:
            self._connection.request(method, path, body=body, headers={**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if kept and isinstance(error, ConnectionError):
                return self._ask(method, path, body, headers)
            raise UnreachableError(
                f"no answer from {self._url} ({error}); start a server with: slim serve"
            ) from None
        if response.status != 200:
            retry = response.getheader("retry-after", "")
            wait_s = float(retry) if retry.isdigit() else None
            raise ServerRefusedError(response.status, read_error(raw), wait_s)
        return response, raw
