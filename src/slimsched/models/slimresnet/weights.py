"""Trained models on disk: NAME.safetensors (half precision) beside NAME.json, which describes the model.

Loading checks the file's hash, every tensor's shape and the class count before anything runs.
"""

from pathlib import Path

from msgspec import Struct, structs

from slimsched.models.model_files import CardFacts, read_card_of, read_weights, write_card, write_weights
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shape import NetworkShape

TRAINED = "model"


class ModelCard(CardFacts, frozen=True, kw_only=True):
    """What a model is: its shape and classes, how its images are normalized, and how it was trained."""

    shape: NetworkShape


class TrainedModel(Struct, frozen=True, kw_only=True):
    """A network with its card."""

    net: SlimResNet
    card: ModelCard


def save(folder: Path, name: str, net: SlimResNet, card: ModelCard) -> ModelCard:
    """Write weights in half precision and the card that goes with them."""
    digest = write_weights(folder / f"{name}.safetensors", net, card.name)
    card = structs.replace(card, weights_sha256=digest)
    write_card(folder / f"{name}.json", card)
    return card


def card_path(path: Path) -> Path:
    """Return the path of the card in a training folder or beside a weights file."""
    return path / f"{TRAINED}.json" if path.is_dir() else path.with_suffix(".json")


def load(path: Path | None = None) -> TrainedModel:
    """Load the model of a training folder or of its .json; without a path, the shipped model."""
    if path is None:
        path = shipped.folder() / f"{shipped.NAME}.json"
    card = read_card(card_path(path))
    net = SlimResNet(card.shape)
    read_weights(card_path(path).with_suffix(".safetensors"), net, card.weights_sha256)
    return TrainedModel(net=net.requires_grad_(False).eval(), card=card)


def read_card(path: Path) -> ModelCard:
    """Read and check a model's card."""
    card: ModelCard = read_card_of(path, ModelCard)
    return card
