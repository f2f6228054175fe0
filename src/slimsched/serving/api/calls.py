"""One inference call, independent of the protocol: read from a request, checked, and answered with a receipt.

One inference call, independent of the protocol: its tensors, its terms and the outputs it asks for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.models.spec import NUMPY, ModelSpec, Path, PlanError, TensorSpec
from slimsched.serving.api.limits import BadRequest, NotFound, read_body
from slimsched.serving.api.shared_memory import Loan, Place, RegionPart
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import ANY_TERMS, NEVER_S, NO_PLAN, Terms
from slimsched.serving.live.calls import Receipt

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


def _wanted(kind: Any) -> str:
    """Say in words what a type takes."""
    match kind:
        case msgspec.inspect.UnionType(types=kinds):
            return " or ".join(_wanted(one) for one in kinds if not isinstance(one, msgspec.inspect.NoneType))
        case msgspec.inspect.FloatType() | msgspec.inspect.IntType():
            number = "a whole number" if isinstance(kind, msgspec.inspect.IntType) else "a number"
            low = f"above {kind.gt:g}" if kind.gt is not None else f"from {kind.ge:g}"
            return f"{number} {low}{',' if kind.gt is not None else ''} up to {kind.le:g}"
        case msgspec.inspect.BoolType():
            return "true or false"
        case _:
            return "a text"


def _all_wanted() -> dict[str, str]:
    described = msgspec.inspect.type_info(RequestParameters)
    assert isinstance(described, msgspec.inspect.StructType)
    return {field.name: _wanted(field.type) for field in described.fields}


_WANTED = _all_wanted()


# -- A model as clients see it: its tensors, the outputs derived from them, and its plans by name.

CLASSES, LABELS = "classes", "labels"
"""Outputs of every classifier beside its own: the number and the name of the class with the largest score."""

NUMBER_BYTES = 32
"""What a number takes on its way into JSON: an object first, then up to 25 characters."""

Outputs = tuple[NDArray[Any], ...]


class ModelFace:
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

    def tensor(self, name: str, outputs: Outputs) -> tuple[str, NDArray[Any] | list[str]]:
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
        outputs: list[dict[str, object]] = []
        for name in self.outputs:
            if name in self._place:
                outputs.append(_described(self.spec.outputs[self._place[name]]))
            else:
                outputs.append({"name": name, "datatype": self.datatype(name), "shape": [-1]})
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "slimsched_pytorch",
            "inputs": [_described(tensor) for tensor in self.spec.inputs],
            "outputs": outputs,
        }


def find_face(faces: Mapping[str, ModelFace], name: str, version: str = "") -> ModelFace:
    """Find a model by name; refuse one, or a version, that is not there."""
    face = faces.get(name)
    if face is None:
        known = ", ".join(f"'{one}'" for one in faces) or "none"
        raise NotFound(f"unknown model '{name}'; this server has {known}")
    if version not in ("", face.version):
        raise NotFound(f"unknown version '{version}' of '{name}'; this server has '{face.version}'")
    return face


def accepted_types(tensor: TensorSpec) -> tuple[str, ...]:
    """The element types a client may send: the model's own, and for bytes floats in [0, 1] as well."""
    return ("UINT8", "FP32") if tensor.datatype == "UINT8" else (tensor.datatype,)


def _described(tensor: TensorSpec) -> dict[str, object]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": [-1, *tensor.shape]}


# -- The receipt of a call, as clients get it: what was chosen, where it ran, what it took.


class InferenceResult(Struct, frozen=True, kw_only=True):
    """The model's outputs, and the receipt as the response's parameters."""

    outputs: Outputs
    parameters: dict[str, Parameter]


def write_receipt(
    spec: ModelSpec, receipts: Sequence[Receipt], accuracy: Callable[[Path], float], terms: Terms = ANY_TERMS
) -> dict[str, Parameter]:
    """Return the receipt: choices and servers of each example; means for the rest."""
    count = sum([one.examples for one in receipts])
    choices, servers = [], []
    queue_s = compute_s = latency_s = energy_j = promised = 0.0
    for one in receipts:
        choices += [spec.text(one.path)] * one.examples
        servers += [",".join(one.servers)] * one.examples
        share = one.examples / count
        sure = -1.0 if one.trail is None else one.trail.sure
        promised += share * (sure if sure >= 0.0 else accuracy(one.path))
        queue_s += share * one.queue_s
        compute_s += share * one.compute_s
        latency_s += share * one.latency_s
        energy_j += one.examples * one.energy_j
    return {
        "choices": ";".join(choices),
        "servers": ";".join(servers),
        "predicted_accuracy": promised,
        "queue_ms": 1e3 * queue_s,
        "compute_ms": 1e3 * compute_s,
        "network_ms": 1e3 * max(0.0, latency_s - queue_s - compute_s),
        "energy_mj": 1e3 * energy_j,
        "energy_source": receipts[0].energy_source,
        "reason": receipts[0].reasons[-1],
        "request": receipts[0].request,
        **_weighed(receipts[0]),
        **_how_sure(spec, receipts),
        **_missed(terms, energy_j / count),
    }


def _weighed(receipt: Receipt) -> dict[str, Parameter]:
    """Return which limit decided about the last segments, and which server was second best."""
    why = receipt.why
    if why is None:
        return {}
    decided: dict[str, Parameter] = {"decided_by": why.binding or "nothing: device time is free"}
    if why.server < 0:
        return decided
    return {**decided, "runner_up": receipt.runner_up, "runner_up_points_behind": 100 * why.behind}


def _missed(terms: Terms, energy_j: float) -> dict[str, Parameter]:
    """Return which of the sender's limits was not kept: small batches may take more than was planned."""
    if not 0.0 < terms.max_energy_j < energy_j:
        return {}
    asked = f"asked for at most {1e3 * terms.max_energy_j:g} mJ per example, took {1e3 * energy_j:.3g} mJ"
    return {"missed": asked}


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


LONGEST_ID = 1000


class RequestedOutput(Struct, frozen=True, kw_only=True):
    """An output the client asked for; `binary` asks for raw bytes instead of the protocol's own numbers.

    With a `place` it is written into shared memory, as raw bytes.
    """

    name: str
    binary: bool = False
    place: Place | None = None


class Call(Struct, frozen=True, kw_only=True):
    """A request: the bytes of each input tensor in the spec's order, `count` rows each.

    `parts` says where in shared memory outputs go, by their names.
    """

    id: str
    face: ModelFace
    inputs: tuple[bytes | memoryview, ...]
    count: int
    terms: Terms
    outputs: tuple[RequestedOutput, ...]
    parts: Mapping[str, RegionPart] = {}


Input = TypeVar("Input")
"""An input as a protocol describes it."""


class CallHead(Struct, Generic[Input], frozen=True, kw_only=True):
    """What a request says besides its tensors, checked."""

    id: str
    count: int
    inputs: tuple[Input, ...]
    terms: Terms
    outputs: tuple[RequestedOutput, ...]

    def call(self, face: ModelFace, inputs: tuple[memoryview, ...], loan: Loan) -> Call:
        """Return the call with these tensors, in the order of the model's spec."""
        return Call(
            id=self.id,
            face=face,
            count=self.count,
            terms=self.terms,
            outputs=self.outputs,
            parts=find_parts(face, self.outputs, self.count, loan),
            inputs=inputs,
        )


def check_id(text: str) -> None:
    """Refuse an id that is too long to be sent back."""
    if len(text) > LONGEST_ID:
        raise BadRequest(f"the id has {len(text)} characters; give at most {LONGEST_ID}")


def check_inputs(face: ModelFace, names: Sequence[str]) -> None:
    """Refuse inputs that are not just those the model takes."""
    if sorted(names) != sorted(face.inputs):
        known = ", ".join(f"'{name}'" for name in face.inputs)
        given = ", ".join(f"'{name}'" for name in names) or "none"
        raise BadRequest(f"inputs are {given}; model '{face.name}' takes {known}")


def check_outputs(
    face: ModelFace, requested: Sequence[RequestedOutput], *, binary: bool
) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs, or the default ones; refuse names that are unknown or repeated."""
    names: set[str] = set()
    for one in requested:
        if one.name not in face.outputs:
            raise BadRequest(f"unknown output '{one.name}'; this model has {', '.join(face.outputs)}")
        if one.name in names:
            raise BadRequest(f"output '{one.name}' is asked for twice; name each output once")
        names.add(one.name)
    if requested:
        return tuple(requested)
    return tuple(RequestedOutput(name=name, binary=binary) for name in face.default_outputs)


def check_answer(face: ModelFace, outputs: Sequence[RequestedOutput], count: int, limit_bytes: int) -> None:
    """Refuse a call whose answer would be too large, before anything is computed."""
    size = count * sum(face.row_bytes(one.name, as_text=not (one.binary or one.place)) for one in outputs)
    if size > limit_bytes:
        raise BadRequest(
            f"the answer would take up to {size} bytes, {limit_bytes} are the limit; send fewer examples, "
            "name fewer outputs, or ask for binary data"
        )


def find_parts(
    face: ModelFace, outputs: Sequence[RequestedOutput], count: int, loan: Loan
) -> dict[str, RegionPart]:
    """Find where in shared memory outputs go; refuse too little room before anything is computed."""
    parts: dict[str, RegionPart] = {}
    for one in outputs:
        if one.place is not None:
            part = parts[one.name] = loan.find(one.place, f"output '{one.name}'")
            if one.name != LABELS:  # words have their lengths when they are known
                part.check(f"output '{one.name}'", count * face.row_bytes(one.name, as_text=False))
    return parts


def read_terms(face: ModelFace, asked: RequestParameters) -> Terms:
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
        plan=face.plan(str(plan)) if plan else NO_PLAN,
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
    size = call.count * sum(call.face.row_bytes(one.name, as_text=False) for one in call.outputs)
    is_raw = all(one.binary and one.place is None and one.name != LABELS for one in call.outputs)
    return is_raw and size <= LARGEST_ANSWER_BYTES


class KnownHead:
    """Calls with the same head, which differ only in the values of their tensors."""

    def __init__(self, number: int, call: Call, layout: Layout, form: AnswerForm) -> None:
        self.number, self.layout, self._around = number, layout, form.around
        self.call = replace(call, inputs=())
        self.count, self.model = call.count, call.face.model.number
        self.row_bytes = [call.face.row_bytes(one.name, as_text=False) for one in call.outputs]
        """What each output takes per example."""
        self.before_rows = [form.before_rows(self.count * size) for size in self.row_bytes]
        self._kinds = [NUMPY[tensor.datatype] for tensor in call.face.spec.inputs]
        self._last: tuple[Receipt | None, tuple[bytes, bytes, bytes]] = (None, (b"", b"", b""))

    def accepts(self, inputs: Sequence[memoryview]) -> bool:
        """Whether the values of some calls can be what they are: floats must be finite."""
        return all(
            kind.kind != "f" or bool(np.isfinite(np.frombuffer(raw, kind)).all())
            for kind, raw in zip(self._kinds, inputs, strict=True)
        )

    def arrays(self, raws: Sequence[memoryview], count: int) -> Outputs:
        """Return the model's outputs for this many examples."""
        specs = self.call.face.spec.outputs
        return tuple(
            [
                np.frombuffer(raw, NUMPY[spec.datatype]).reshape(count, *spec.shape)
                for raw, spec in zip(raws, specs, strict=True)
            ]
        )

    def rows(self, outputs: Outputs) -> list[bytes]:
        """Return the bytes of each output that the calls ask for, example by example."""
        return [pack(self.call.face.tensor(one.name, outputs)[1]) for one in self.call.outputs]

    def text(self, receipt: Receipt) -> tuple[bytes, bytes, bytes]:
        """Return the text of an answer, around its network time and the number of its first request."""
        if self._last[0] is not receipt:
            self._last = receipt, self._text(receipt)
        return self._last[1]

    def _text(self, receipt: Receipt) -> tuple[bytes, bytes, bytes]:
        """Return the text around what differs between calls on one receipt."""
        call = self.call
        own, accuracy = replace(receipt, examples=self.count), call.face.model.quality.accuracy
        parameters = write_receipt(call.face.spec, [own], accuracy, call.terms)
        return self._around(call, parameters, [(self.count, *self._shape(one.name)) for one in call.outputs])

    def _shape(self, output: str) -> tuple[int, ...]:
        shapes = {tensor.name: tuple(tensor.shape) for tensor in self.call.face.spec.outputs}
        return shapes.get(output, ())
