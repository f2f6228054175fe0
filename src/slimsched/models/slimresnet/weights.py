"""Trained models on disk: NAME.safetensors (half precision) beside NAME.json, which says what they are.

Loading checks the file's hash, every tensor's shape and the class count before anything runs.
"""

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from slimsched.kernel.errors import DataError
from slimsched.models.data.image_set import Colours
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.training.recipe import Recipe

TRAINED = "model"


class ModelCard(Struct, frozen=True, kw_only=True):
    """What a model is: its shape and classes, how its images are normalized, and how it was trained."""

    name: str
    shape: NetworkShape
    colours: Colours
    classes: tuple[str, ...]
    recipe: Recipe
    epochs: int
    training_s: float
    trained_on: str
    weights_sha256: str = ""
    accuracy_percent: dict[str, float] = {}
    notes: tuple[str, ...] = ()


class TrainedModel(Struct, frozen=True, kw_only=True):
    """A network with its card."""

    net: SlimResNet
    card: ModelCard


def save(folder: Path, name: str, net: SlimResNet, card: ModelCard) -> ModelCard:
    """Write weights in half precision and the card that goes with them."""
    tensors = {key: value.detach().half().contiguous().cpu() for key, value in net.state_dict().items()}
    raw = save_tensors(tensors, metadata={"name": card.name})
    card = msgspec.structs.replace(card, weights_sha256=hashlib.sha256(raw).hexdigest())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.safetensors").write_bytes(raw)
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
    return card


def load(path: Path | None = None) -> TrainedModel:
    """The model of a training folder (or of its .json); the shipped one when no path is given."""
    if path is None:
        path = shipped.folder() / f"{shipped.NAME}.json"
    card_path = path / f"{TRAINED}.json" if path.is_dir() else path.with_suffix(".json")
    card = read_card(card_path)
    weights_path = card_path.with_suffix(".safetensors")
    try:
        raw = weights_path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read weights {weights_path}: {error.strerror}") from None
    if (digest := hashlib.sha256(raw).hexdigest()) != card.weights_sha256:
        raise DataError(
            f"{weights_path} is damaged: SHA-256 {digest[:12]}…, its card says {card.weights_sha256[:12]}…; "
            "install the package again or copy the file again"
        )
    net = SlimResNet(card.shape)
    try:
        tensors = load_tensors(raw)
    except SafetensorError as error:
        raise DataError(f"{weights_path} is no safetensors file ({error}); copy it again") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise DataError(
                f"{weights_path}: {name} has shape {found.get(name)}, but its card needs {wanted.get(name)}"
            )
    net.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return TrainedModel(net=net.requires_grad_(False).eval(), card=card)


def read_card(path: Path) -> ModelCard:
    """Read and check a model's card."""
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except OSError:
        raise DataError(
            f"no model at {path}; name a folder that slim model train wrote, or leave --model out"
        ) from None
    except msgspec.DecodeError as error:
        raise DataError(f"{path} is no model card: {error}") from None
    if len(card.classes) != card.shape.classes:
        raise DataError(
            f"{path}: {len(card.classes)} class names, but the network has {card.shape.classes} classes"
        )
    return card
