"""The parameters of a request, with the range of each number in its type."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slimsched.serving.api.refusal import BadRequest

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
