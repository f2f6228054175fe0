"""One inference call, independent of the protocol: its images, its terms and the outputs it asks for."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.width import WIDTHS
from slimsched.serving.api.refusal import BadRequest, NotFound
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.domain.terms import Terms

MODEL = "slimresnet"
VERSION = "1"
OUTPUTS = ("classes", "logits", "labels")
Parameter = bool | int | float | str

_KNOWN_PARAMETERS = "deadline_ms, timeout, priority, min_accuracy, max_energy_mj, width"


class RequestedOutput(Struct, frozen=True, kw_only=True):
    """An output the client asked for; `binary` asks for raw bytes instead of the protocol's own numbers."""

    name: str
    binary: bool = False


class Call(Struct, frozen=True, kw_only=True):
    """A request to classify images of shape (n, 3, size, size)."""

    id: str
    images: NDArray[np.uint8]
    terms: Terms
    outputs: tuple[RequestedOutput, ...]


def check_model(name: str, version: str) -> None:
    """Refuse any model or version other than the one this server has."""
    if name != MODEL:
        raise NotFound(f"unknown model '{name}'; this server has '{MODEL}'")
    if version not in ("", VERSION):
        raise NotFound(f"unknown version '{version}' of '{MODEL}'; this server has '{VERSION}'")


def check_outputs(requested: Sequence[RequestedOutput]) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs; refuse a name the model does not have."""
    for one in requested:
        if one.name not in OUTPUTS:
            raise BadRequest(f"unknown output '{one.name}'; this model has {', '.join(OUTPUTS)}")
    return tuple(requested)


def check_shape(datatype: str, shape: tuple[int, ...], image_size: int, max_images: int) -> None:
    """Refuse a tensor that is not a batch of images of the right type and size."""
    if datatype not in ("UINT8", "FP32"):
        raise BadRequest(f"input 'images': datatype '{datatype}' is not accepted; send UINT8 or FP32")
    if len(shape) != 4 or shape[1:] != (3, image_size, image_size):
        raise BadRequest(
            f"input 'images': shape {list(shape)} does not fit; send [n, 3, {image_size}, {image_size}]"
        )
    if not 1 <= shape[0] <= max_images:
        raise BadRequest(f"input 'images': {shape[0]} images in one request; send 1 to {max_images}")


def read_terms(parameters: Mapping[str, Parameter]) -> Terms:
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
    width = _number(parameters, "width") if "width" in parameters else 0.0
    if width and width not in WIDTHS:
        known = ", ".join(f"{w:g}" for w in WIDTHS)
        raise BadRequest(
            f"parameter width is {width:g}: this model was trained at {known}; ask for one of these"
        )
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
        width=width,
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
