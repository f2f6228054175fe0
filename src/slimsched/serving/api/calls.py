"""One inference call, independent of the protocol: read from a request, checked, and answered with a receipt.

Both protocols turn what they read into a `CallHead` and tensors, which are checked here; so they refuse the
same calls with the same words.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Annotated, Any, NamedTuple, Self, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.plugins import described
from slimsched.models.spec import NUMPY, ModelSpec, PlanError, TensorSpec
from slimsched.serving.api.limits import BadRequest, Ledger, Limits, NotFound, Unavailable, read_body
from slimsched.serving.api.shared_memory import RegionPart, RegionSpan, SharedMemory
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Terms
from slimsched.serving.live.calls import Answered, Arrays, Receipt
from slimsched.serving.live.memory import InputArena

# -- The parameters of a request, with the range of each number in its type.

Parameter = bool | int | float | str


class RequestParameters(Struct, frozen=True, kw_only=True):
    """What a client may ask for; numbers may be given as text."""

    deadline_ms: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=1e15)] | None = None  # Triton's name, in microseconds
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    min_accuracy: Annotated[float, Meta(ge=0, le=100)] = 0.0  # a share, or a percentage above 1
    max_energy_mj: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    plan: Annotated[str, Meta(max_length=10_000)] | Annotated[float, Meta(ge=0, le=1e6)] = ""
    width: Annotated[str, Meta(max_length=10_000)] | Annotated[float, Meta(ge=0, le=1e6)] = ""
    binary_data_output: bool = False


NO_PARAMETERS = RequestParameters()


def read_parameters(given: Mapping[str, Parameter]) -> RequestParameters:
    """Read the parameters; unknown ones are ignored, because Triton clients send some."""
    if not given:
        return NO_PARAMETERS
    try:
        return msgspec.convert(given, RequestParameters, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        shown = repr(given[name])[:100] if name in given else "wrong"
        raise BadRequest(f"parameter {name} is {shown}; give {_WANTED.get(name, 'another value')}") from None


_WANTED = {
    name: described(annotation).removesuffix(" or none")
    for name, annotation in get_type_hints(RequestParameters, include_extras=True).items()
}


# -- A model as clients see it: its tensors, the outputs derived from them, and its plans by name.

CLASSES, LABELS = "classes", "labels"
"""Arrays of every classifier beside its own: the number and the name of the class with the largest score."""

NUMBER_BYTES = 32
"""What a number takes on its way into JSON: an object first, then up to 25 characters."""


class ModelApi:
    """What requests to one model may hold and what answers can give."""

    def __init__(self, model: ServedModel) -> None:
        self.model, self.spec = model, model.spec
        self.name, self.version = model.name, model.spec.version
        self.inputs = {tensor.name: tensor for tensor in self.spec.inputs}
        first = self.spec.outputs[0]
        is_classifier = len(first.shape) == 1 and first.datatype.startswith("FP")
        derived = [CLASSES] if is_classifier else []
        derived += [LABELS] if is_classifier and self.spec.labels else []
        self.outputs = (*derived[:1], *(tensor.name for tensor in self.spec.outputs), *derived[1:])
        """The names of all outputs a client may ask for."""
        self.default_outputs = self.outputs[: len(self.outputs) - len(derived[1:])]
        self._place = {tensor.name: place for place, tensor in enumerate(self.spec.outputs)}
        self._label_bytes = 8 + 6 * max((len(label) for label in self.spec.labels), default=0)

    def tensor(self, name: str, outputs: Arrays) -> tuple[str, NDArray[Any] | list[str]]:
        """One output by name: its type, and its values or words."""
        if name in self._place:
            place = self._place[name]
            return self.spec.outputs[place].datatype, outputs[place]
        classes = outputs[0].argmax(axis=1).astype(np.int64)
        if name == CLASSES:
            return "INT64", classes
        return "BYTES", [self.spec.labels[int(number)] for number in classes]

    def datatype(self, name: str) -> str:
        """Return the type of an output's values."""
        if name in self._place:
            return self.spec.outputs[self._place[name]].datatype
        return "INT64" if name == CLASSES else "BYTES"

    def row_bytes(self, name: str, *, as_text: bool) -> int:
        """The most that one example's share of an output takes in an answer, as text or as raw bytes."""
        if name == LABELS:
            return self._label_bytes
        tensor = self.spec.outputs[self._place[name]] if name in self._place else None
        numbers = 1 if tensor is None else prod(tensor.shape)
        if as_text:
            return NUMBER_BYTES * numbers
        return numbers * (8 if tensor is None else NUMPY[tensor.datatype].itemsize)

    @property
    def answer_bytes(self) -> int:
        """The most that one example's share of all outputs takes as raw bytes."""
        return sum(self.row_bytes(name, as_text=False) for name in self.outputs)

    def plan(self, text: str) -> int:
        """The number of a plan that a client names, such as '0.5' or '0.25,0.5,0.75,1.0'."""
        try:
            return self.model.tree.index[self.spec.path(text)]
        except PlanError as error:
            raise BadRequest(str(error)) from None

    def metadata(self) -> dict[str, object]:
        """The model's inputs and outputs as the protocol describes them."""
        rows = {tensor.name: tensor.shape for tensor in self.spec.outputs}
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "slimsched_pytorch",
            "inputs": [_described(one.name, one.datatype, one.shape) for one in self.spec.inputs],
            "outputs": [_described(name, self.datatype(name), rows.get(name, ())) for name in self.outputs],
        }


def accepted_types(tensor: TensorSpec) -> tuple[str, ...]:
    """The element types a client may send: the model's own, and for bytes floats in [0, 1] as well."""
    return ("UINT8", "FP32") if tensor.datatype == "UINT8" else (tensor.datatype,)


def _described(name: str, datatype: str, shape: tuple[int, ...]) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": [-1, *shape]}


# -- The receipt of a call, as clients get it: what was chosen, where it ran, what it took.


class InferenceResult(Struct, frozen=True, kw_only=True):
    """The model's outputs, and the receipt as the response's parameters."""

    outputs: Arrays
    parameters: dict[str, Parameter]


def write_receipt(call: "Call", receipts: Sequence[Receipt]) -> dict[str, Parameter]:
    """Return the receipt: choices and servers of each example; means for the rest."""
    spec, quality = call.api.spec, call.api.model.quality
    count, first = sum([one.examples for one in receipts]), receipts[0]
    choices, servers = [], []
    queue_s = compute_s = latency_s = energy_j = promised = 0.0
    for one in receipts:
        choices += [spec.text(one.path)] * one.examples
        servers += [",".join(one.servers)] * one.examples
        share = one.examples / count
        sure = -1.0 if one.trail is None else one.trail.sure
        promised += share * (sure if sure >= 0.0 else quality.accuracy(one.path))
        queue_s += share * one.queue_s
        compute_s += share * one.compute_s
        latency_s += share * one.latency_s
        energy_j += one.examples * one.energy_j
    told: dict[str, Parameter] = {
        "choices": ";".join(choices),
        "servers": ";".join(servers),
        "predicted_accuracy": promised if quality.is_measured else quality.name,
        "queue_ms": 1e3 * queue_s,
        "compute_ms": 1e3 * compute_s,
        "network_ms": 1e3 * max(0.0, latency_s - queue_s - compute_s),
        "energy_mj": 1e3 * energy_j,
        "energy_source": first.energy_source,
        "reason": first.reasons[-1],
        "request": first.request,
    }
    if (why := first.why) is not None:  # what decided about the last segments
        told["decided_by"] = why.binding or "nothing: device time is free"
        if why.server >= 0:
            told |= {"runner_up": first.runner_up, "runner_up_points_behind": 100 * why.behind}
    told |= _how_sure(spec, receipts)
    most_j, took_j = call.terms.max_energy_j, energy_j / count
    if 0.0 < most_j < took_j:  # small batches may take more than was planned
        told["missed"] = f"asked for at most {1e3 * most_j:g} mJ per example, took {1e3 * took_j:.3g} mJ"
    return told


def _how_sure(spec: ModelSpec, receipts: Sequence[Receipt]) -> dict[str, Parameter]:
    """Return, where answers are judged, how sure each is, why it was sent, and which plans ran before it."""
    trails = [one.trail for one in receipts for _ in range(one.examples) if one.trail is not None]
    if len(trails) < sum(one.examples for one in receipts) or min(trail.sure for trail in trails) < 0.0:
        return {}
    return {
        "sure": ";".join(f"{trail.sure:.3f}" for trail in trails),
        "stopped": ";".join(trail.why for trail in trails),
        "tried": ";".join(">".join(map(spec.text, trail.tried)) for trail in trails),
    }


# -- Tensors of the Open Inference Protocol: converts JSON and bytes to arrays, and strings to bytes.


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
        low, high = np.iinfo(wanted).min, np.iinfo(wanted).max
        is_in_range = (values >= low) & (values <= high)
        if values.dtype.kind == "f":
            is_in_range &= (values == np.floor(values)) & (values < float(high) + 1.0)
        if not is_in_range.all():
            raise BadRequest(f"{where}: {wanted.name.upper()} takes whole numbers from {low} to {high}")
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


class InputMemory:
    """What has memory for the inputs of calls, and the models that they may ask: a `CallHandler`."""

    def __init__(self, arena: InputArena | None, *, shared_memory: bool) -> None:
        """The arena is for large inputs; with `shared_memory`, clients may register their own."""
        self.arena, self.ledger = arena, Ledger()
        self.memory = SharedMemory(self.ledger, is_allowed=shared_memory)
        self.offer((), Limits())

    def offer(self, models: Iterable[ServedModel], limits: Limits) -> None:
        """Take calls to these models, and keep these limits, from now on."""
        self.apis, self.limits = {model.name: ModelApi(model) for model in models}, limits
        self.ledger.proxies = limits.proxy_addresses
        if self.arena is not None:
            self.arena.limit_bytes = limits.held_bytes

    def api(self, name: str, version: str = "") -> ModelApi:
        """Find a model by name; refuse one, or a version, that is not there."""
        api = self.apis.get(name)
        if api is None:
            known = ", ".join(f"'{one}'" for one in self.apis) or "none"
            raise NotFound(f"unknown model '{name}'; this server has {known}")
        if version not in ("", api.version):
            raise NotFound(f"unknown version '{version}' of '{name}'; this server has '{api.version}'")
        return api


class Loan:
    """The memory into which the inputs of one call are copied from regions; it is given back at the end."""

    __slots__ = ("_handler", "_held_bytes", "_rooms")

    def __init__(self, handler: InputMemory) -> None:
        self._handler = handler
        self._rooms: list[memoryview] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        """Lend for the time of a call."""
        return self

    def __exit__(self, *failure: object) -> None:
        """Give everything back."""
        if not self._held_bytes:
            return
        self._handler.ledger.hold(self._handler.memory.account, -self._held_bytes)
        for room in self._rooms:
            assert self._handler.arena is not None
            self._handler.arena.give_back(room)

    def find(self, place: RegionSpan, what: str) -> RegionPart:
        """Return the part of a region that a request names for a tensor; refuse one that is not there."""
        return self._handler.memory.find(place, what)

    def read(self, part: RegionPart) -> memoryview:
        """Return a copy of a part, which its client cannot change; in the arena where there is room."""
        handler, size = self._handler, part.byte_size
        account = handler.memory.account
        if 2 * (account.held_bytes + size) > handler.limits.held_bytes:
            raise Unavailable("too many bytes of requests are under way; try again")
        handler.ledger.hold(account, size)
        self._held_bytes += size
        copy = handler.arena.take(size) if handler.arena is not None else None
        if copy is None:
            copy = memoryview(bytearray(size))
        else:
            self._rooms.append(copy)
        part.region.read(part.offset, copy)
        return copy


def read_shared(
    tensor: TensorSpec, place: RegionSpan, datatype: str, shape: tuple[int, ...], loan: Loan
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
    """Encode an output as raw bytes; each string has its length in four bytes before it."""
    if not isinstance(values, list):
        return values.tobytes()
    raw = [word.encode() for word in values]
    return b"".join([len(word).to_bytes(4, "little") + word for word in raw])


LONGEST_ID = 1000


class RequestedOutput(Struct, frozen=True, kw_only=True):
    """An output the client asked for; `binary` asks for raw bytes instead of the protocol's own numbers.

    With a `place` it is written into shared memory, as raw bytes.
    """

    name: str
    binary: bool = False
    place: RegionSpan | None = None


class Call(Struct, frozen=True, kw_only=True):
    """A request: the bytes of each input tensor in the spec's order, `count` rows each.

    `parts` says where in shared memory outputs go, by their names.
    """

    id: str
    api: ModelApi
    inputs: tuple[bytes | memoryview, ...]
    count: int
    terms: Terms
    outputs: tuple[RequestedOutput, ...]
    parts: Mapping[str, RegionPart] = {}


class GivenInput(Struct, frozen=True, kw_only=True):
    """An input as a request describes it: with a `place` it lies in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: RegionSpan | None = None
    size: int | None = None  # HTTP: its length in bytes if it follows the JSON
    data: bytes = b""  # HTTP: its numbers as JSON if they are there

    def is_plain(self, api: ModelApi) -> bool:
        """Whether its bytes are just what the model takes, whatever they are."""
        kind = api.inputs[self.name].datatype
        return self.place is None and self.datatype == kind and kind not in ("BOOL", "BYTES")


class CallHead(Struct, frozen=True, kw_only=True):
    """What a request says besides its tensors, checked."""

    id: str
    count: int
    inputs: tuple[GivenInput, ...]
    terms: Terms
    outputs: tuple[RequestedOutput, ...]

    def call(self, api: ModelApi, inputs: tuple[memoryview, ...], loan: Loan) -> Call:
        """Return the call with these tensors, in the order of the model's spec.

        Refuse too little room in shared memory for its outputs before anything is computed.
        """
        parts: dict[str, RegionPart] = {}
        for one in self.outputs:
            if one.place is not None:
                part = parts[one.name] = loan.find(one.place, f"output '{one.name}'")
                if one.name != LABELS:  # words have their lengths when they are known
                    part.check(f"output '{one.name}'", self.count * api.row_bytes(one.name, as_text=False))
        return Call(
            id=self.id,
            api=api,
            count=self.count,
            terms=self.terms,
            outputs=self.outputs,
            parts=parts,
            inputs=inputs,
        )


def result_of(call: Call, answered: Answered) -> InferenceResult:
    """Return the answer to a call, with its receipt as clients get it."""
    return InferenceResult(outputs=answered.outputs, parameters=write_receipt(call, answered.receipts))


def check_head(
    api: ModelApi,
    most: tuple[int, int],
    name: str,
    inputs: Sequence[GivenInput],
    requested: Sequence[RequestedOutput],
    parameters: RequestParameters,
    *,
    binary: bool,
) -> CallHead:
    """Check what a request called `name` says, within the most examples and the largest answer."""
    if len(name) > LONGEST_ID:
        raise BadRequest(f"the id has {len(name)} characters; give at most {LONGEST_ID}")
    names = [one.name for one in inputs]
    if sorted(names) != sorted(api.inputs):
        known = ", ".join(f"'{name}'" for name in api.inputs)
        given = ", ".join(f"'{name}'" for name in names) or "none"
        raise BadRequest(f"inputs are {given}; model '{api.name}' takes {known}")
    counts = {check_tensor(api.inputs[one.name], one.datatype, one.shape, most[0]) for one in inputs}
    if len(counts) > 1:
        raise BadRequest(f"inputs have {sorted(counts)} rows; give all the same number")
    outputs, count = check_outputs(api, requested, binary=binary), counts.pop()
    size = count * sum(api.row_bytes(one.name, as_text=not (one.binary or one.place)) for one in outputs)
    if size > most[1]:  # before anything is computed
        raise BadRequest(
            f"the answer would take up to {size} bytes, {most[1]} are the limit; send fewer examples, "
            "name fewer outputs, or ask for binary data"
        )
    terms = read_terms(api, parameters)
    return CallHead(id=name, count=count, inputs=tuple(inputs), terms=terms, outputs=outputs)


def check_outputs(
    api: ModelApi, requested: Sequence[RequestedOutput], *, binary: bool
) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs, or the default ones; refuse names that are unknown or repeated."""
    names: set[str] = set()
    for one in requested:
        if one.name not in api.outputs:
            raise BadRequest(f"unknown output '{one.name}'; this model has {', '.join(api.outputs)}")
        if one.name in names:
            raise BadRequest(f"output '{one.name}' is asked for twice; name each output once")
        names.add(one.name)
    if requested:
        return tuple(requested)
    return tuple(RequestedOutput(name=name, binary=binary) for name in api.default_outputs)


def read_terms(api: ModelApi, asked: RequestParameters) -> Terms:
    """Read the terms from a request's parameters."""
    deadline_s = NEVER_S
    if asked.deadline_ms is not None:
        deadline_s = asked.deadline_ms / 1e3
    elif asked.timeout is not None:
        deadline_s = asked.timeout / 1e6
    plan = asked.plan or asked.width  # width: a plan of one choice everywhere
    return Terms(
        deadline_s=deadline_s,
        priority=asked.priority,
        min_accuracy=asked.min_accuracy / (100.0 if asked.min_accuracy > 1.0 else 1.0),
        max_energy_j=asked.max_energy_mj / 1e3,
        plan=api.plan(str(plan)) if plan else NO_PLAN,
    )


# -- A known head: what the first bytes of a request mean, and how its answer is written.
#
# Clients send the same head with every request. It is read and checked once, by the code that reads any
# request. After that the same bytes mean the same, until models or limits change.

LARGEST_ANSWER_BYTES = 256 * 2**10

Layout = list[tuple[int, int]]
"""Where each input of the model begins behind the text of a request, and its size in bytes."""


class AnswerForm(NamedTuple):
    """How a protocol writes answers that differ in two numbers."""

    around: Callable[[Call, dict[str, Parameter], Sequence[tuple[int, ...]]], tuple[bytes, bytes, bytes]]
    """Writes the text around the network time and the number of the request, with outputs of these shapes."""
    before_rows: Callable[[int], bytes]
    """Writes what precedes an output with this number of bytes."""


def is_plain_call(call: Call) -> bool:
    """Whether the answer to this call differs from others only in numbers."""
    size = call.count * sum(call.api.row_bytes(one.name, as_text=False) for one in call.outputs)
    is_raw = all(one.binary and one.place is None and one.name != LABELS for one in call.outputs)
    return is_raw and size <= LARGEST_ANSWER_BYTES


class KnownHead:
    """Calls with the same head, which differ only in the values of their tensors."""

    def __init__(self, number: int, call: Call, layout: Layout, form: AnswerForm) -> None:
        self.number, self.layout, self._around = number, layout, form.around
        self.call = replace(call, inputs=())
        self.count, self.model = call.count, call.api.model.number
        self.row_bytes = [call.api.row_bytes(one.name, as_text=False) for one in call.outputs]
        """What each output takes per example."""
        self.before_rows = [form.before_rows(self.count * size) for size in self.row_bytes]
        self._kinds = [NUMPY[tensor.datatype] for tensor in call.api.spec.inputs]
        self._last: tuple[Receipt | None, tuple[bytes, bytes, bytes]] = (None, (b"", b"", b""))

    def accepts(self, inputs: Sequence[memoryview]) -> bool:
        """Whether the values of some calls can be what they are: floats must be finite."""
        return all(
            kind.kind != "f" or bool(np.isfinite(np.frombuffer(raw, kind)).all())
            for kind, raw in zip(self._kinds, inputs, strict=True)
        )

    def rows(self, outputs: Arrays) -> list[bytes]:
        """Return the bytes of each output that the calls ask for, example by example."""
        return [pack(self.call.api.tensor(one.name, outputs)[1]) for one in self.call.outputs]

    def text(self, receipt: Receipt) -> tuple[bytes, bytes, bytes]:
        """Return the text of an answer, around its network time and the number of its first request."""
        if self._last[0] is not receipt:
            call = self.call
            parameters = write_receipt(call, [replace(receipt, examples=self.count)])
            shapes = {tensor.name: tuple(tensor.shape) for tensor in call.api.spec.outputs}
            outputs = [(self.count, *shapes.get(one.name, ())) for one in call.outputs]
            self._last = receipt, self._around(call, parameters, outputs)
        return self._last[1]
