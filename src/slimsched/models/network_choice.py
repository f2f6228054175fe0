"""Builds, loads and saves either network, chosen by its shape or card."""

from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import DataError
from slimsched.kernel.section import UNREADABLE
from slimsched.models.network import Shape, SlimNetwork
from slimsched.models.slimresnet import weights as resnet_weights
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.weights import ModelCard
from slimsched.models.slimvit import weights as vit_weights
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.slimvit.weights import VitCard

Card = ModelCard | VitCard


class LoadedModel(Struct, frozen=True, kw_only=True):
    """Any trained network with its card."""

    net: SlimNetwork
    card: Card


def build(shape: Shape) -> SlimNetwork:
    """Make a new network of this shape."""
    return SlimVit(shape) if isinstance(shape, VitShape) else SlimResNet(shape)


def load(path: Path | None = None) -> LoadedModel:
    """Load either network from a training folder; without a path, the shipped model."""
    if path is not None and _is_vit(resnet_weights.card_path(path)):
        vit = vit_weights.load(path)
        return LoadedModel(net=vit.net, card=vit.card)
    resnet = resnet_weights.load(path)
    return LoadedModel(net=resnet.net, card=resnet.card)


def save(folder: Path, name: str, net: SlimNetwork, card: Card) -> Card:
    """Write weights in half precision and the card that goes with them."""
    if isinstance(net, SlimVit) and isinstance(card, VitCard):
        return vit_weights.save(folder, name, net, card)
    if isinstance(net, SlimResNet) and isinstance(card, ModelCard):
        return resnet_weights.save(folder, name, net, card)
    raise DataError(f"a {type(card).__name__} does not describe a {type(net).__name__}")


class _Facts(Struct, frozen=True):
    shape: dict[str, object] = {}


def _is_vit(card_path: Path) -> bool:
    try:
        return "heads" in msgspec.json.decode(card_path.read_bytes(), type=_Facts).shape
    except UNREADABLE:
        return False
