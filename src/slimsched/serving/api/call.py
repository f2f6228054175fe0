"""One inference call, independent of the protocol: its tensors, its terms and the outputs it asks for."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from slimsched.serving.api.model_face import ModelFace
from slimsched.serving.api.refusal import BadRequest
from slimsched.serving.domain.request import NEVER_S, NO_PLAN
from slimsched.serving.domain.terms import Terms

Parameter = bool | int | float | str

_KNOWN_PARAMETERS = "deadline_ms, timeout, priority, min_accuracy, max_energy_mj, plan"


class RequestedOutput(Struct, frozen=True, kw_only=True):
    """An output the client asked for; `binary` asks for raw bytes instead of the protocol's own numbers."""

    name: str
    binary: bool = False


class Call(Struct, frozen=True, kw_only=True):
    """A request: the bytes of each input tensor in the spec's order, `count` rows each."""

    id: str
    face: ModelFace
    inputs: tuple[bytes | memoryview, ...]
    count: int
    terms: Terms
    outputs: tuple[RequestedOutput, ...]


def check_inputs(face: ModelFace, names: Sequence[str]) -> None:
    """Refuse inputs that are not just those the model takes."""
    if sorted(names) != sorted(face.inputs):
        known = ", ".join(f"'{name}'" for name in face.inputs)
        given = ", ".join(f"'{name}'" for name in names) or "none"
        raise BadRequest(f"inputs are {given}; model '{face.name}' takes {known}")


def check_outputs(
    face: ModelFace, requested: Sequence[RequestedOutput], *, binary: bool
) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs, or the default ones; refuse a name the model does not have."""
    for one in requested:
        if one.name not in face.outputs:
            raise BadRequest(f"unknown output '{one.name}'; this model has {', '.join(face.outputs)}")
    if requested:
        return tuple(requested)
    return tuple(RequestedOutput(name=name, binary=binary) for name in face.default_outputs)


def read_terms(face: ModelFace, parameters: Mapping[str, Parameter]) -> Terms:
    """Read the terms from a request's parameters.

    Unknown parameters are ignored, because Triton clients send some that mean nothing here.
    """
    deadline_s = NEVER_S
    if "deadline_ms" in parameters:
        deadline_s = _number(parameters, "deadline_ms") / 1e3
    elif "timeout" in parameters:  # Triton's name, in microseconds
        deadline_s = _number(parameters, "timeout") / 1e6
    min_accuracy = _number(parameters, "min_accuracy") if "min_accuracy" in parameters else 0.0
    if min_accuracy > 1.0:
        min_accuracy /= 100.0
    if not 0.0 <= min_accuracy <= 1.0:
        raise BadRequest(
            f"parameter min_accuracy is {parameters['min_accuracy']}; give a share or a percentage"
        )
    plan = parameters.get("plan", parameters.get("width", ""))  # width: a plan of one choice everywhere
    if deadline_s <= 0:
        raise BadRequest("parameter deadline_ms must be above 0")
    priority = _number(parameters, "priority") if "priority" in parameters else 0.0
    if priority != int(priority) or abs(priority) > 1000:
        raise BadRequest(f"parameter priority is {priority:g}; give a whole number from -1000 to 1000")
    energy_mj = _number(parameters, "max_energy_mj") if "max_energy_mj" in parameters else 0.0
    if energy_mj < 0:
        raise BadRequest(f"parameter max_energy_mj is {energy_mj:g}; give millijoules above 0")
    return Terms(
        deadline_s=deadline_s,
        priority=int(priority),
        min_accuracy=min_accuracy,
        max_energy_j=energy_mj / 1e3,
        plan=NO_PLAN if plan in ("", 0) else face.plan(str(plan)),
    )


def _number(parameters: Mapping[str, Parameter], name: str) -> float:
    value = parameters[name]
    if isinstance(value, bool):
        raise BadRequest(f"parameter {name} is {value}; give a number")
    try:
        number = float(value)
    except ValueError:
        raise BadRequest(
            f"parameter {name} is '{value}'; give a number (known parameters: {_KNOWN_PARAMETERS})"
        ) from None
    if number != number or abs(number) == float("inf"):
        raise BadRequest(f"parameter {name} is {value}; give a finite number")
    return number
