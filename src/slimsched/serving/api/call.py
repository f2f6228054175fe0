"""One inference call, independent of the protocol: its tensors, its terms and the outputs it asks for."""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from slimsched.serving.api.model_face import LABELS, ModelFace
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.api.request_parameters import RequestParameters
from slimsched.serving.api.shared_memory import Loan
from slimsched.serving.api.shared_region import Place, RegionPart
from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Terms

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
