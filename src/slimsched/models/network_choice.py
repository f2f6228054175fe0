"""Builds and loads either network, chosen by its shape or card."""

from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.core.config import UNREADABLE
from slimsched.models.elastic import ElasticModel
from slimsched.models.model_files import Trained, card_path
from slimsched.models.network import SlimNetwork
from slimsched.models.network_shape import Shape, shape_kind
from slimsched.models.shipped_models import shipped_folder
from slimsched.models.slimresnet import weights as resnet_weights
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimvit import weights as vit_weights
from slimsched.models.slimvit.elastic import SlimVitModel
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit


def build(shape: Shape) -> SlimNetwork:
    """Make a new network of this shape."""
    return SlimVit(shape) if isinstance(shape, VitShape) else SlimResNet(shape)


def load(path: Path | None = None) -> Trained[SlimNetwork, Shape]:
    """Load a network from a training folder or by its shipped name; without a path, the default model."""
    path = None if path is None else shipped_folder(str(path)) or path
    if path is not None and _kind(card_path(path)) is VitShape:
        return vit_weights.load(path)
    return resnet_weights.load(path)


def load_elastic(path: Path) -> ElasticModel:
    """Load the network of a training folder as an elastic model."""
    if _kind(card_path(path)) is VitShape:
        return SlimVitModel(vit_weights.load(path))
    return SlimResNetModel(resnet_weights.load(path))


class _Facts(Struct, frozen=True):
    shape: dict[str, object] = {}


def _kind(card: Path) -> type[Shape] | None:
    try:
        return shape_kind(msgspec.json.decode(card.read_bytes(), type=_Facts).shape)
    except UNREADABLE:
        return None
