"""A trained network's files: weights in half precision, checked by hash and by shape when they are read."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from slimsched.kernel.errors import DataError
from slimsched.kernel.quantity import AccuracyFloor, CountOrZero, Seconds
from slimsched.models.data.image_set import Colours
from slimsched.models.training.recipe import Recipe


class CardFacts(Struct, frozen=True, kw_only=True):
    """The facts on every model's card: classes, normalization, training and scores.

    `accuracy_percent` was measured on `scored_on`, such as '60 held-out pictures'.
    """

    name: str
    colours: Colours
    classes: tuple[str, ...]
    recipe: Recipe
    epochs: CountOrZero
    training_s: Seconds
    trained_on: str
    weights_sha256: str = ""
    scored_on: str = ""
    accuracy_percent: dict[str, AccuracyFloor] = {}
    notes: tuple[str, ...] = ()


def write_weights(path: Path, net: nn.Module, name: str) -> str:
    """Write the weights in half precision and return their SHA-256."""
    tensors = {key: value.detach().half().contiguous().cpu() for key, value in net.state_dict().items()}
    raw = save_tensors(tensors, metadata={"name": name})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return hashlib.sha256(raw).hexdigest()


def write_card(path: Path, card: CardFacts) -> None:
    """Write a model's card."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


def read_weights(path: Path, net: nn.Module, sha256: str) -> None:
    """Fill the network with the weights of a file, after checking their hash and shapes."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read weights {path}: {error.strerror}") from None
    if (digest := hashlib.sha256(raw).hexdigest()) != sha256:
        raise DataError(
            f"{path} is damaged: SHA-256 {digest[:12]}…, its card says {sha256[:12]}…; "
            "install the package again or copy the file again"
        )
    try:
        tensors = load_tensors(raw)
    except SafetensorError as error:
        raise DataError(f"{path} is no safetensors file ({error}); copy it again") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise DataError(
                f"{path}: {name} has shape {given.get(name)}, but its card needs {wanted.get(name)}"
            )
    net.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})


def read_card_of(path: Path, kind: type[Any]) -> Any:
    """Read a card of this kind."""
    try:
        card = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError:
        raise DataError(
            f"no model at {path}; name a folder that slim model train wrote, or leave --model out"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{path} is no model card: {error}") from None
    if len(card.classes) != card.shape.classes:
        raise DataError(
            f"{path}: {len(card.classes)} class names, but the network has {card.shape.classes} classes"
        )
    return card
