"""Builds and loads either network, chosen by its shape or card."""

from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.models.model_files import Trained, card_path
from slimsched.models.network import Shape, SlimNetwork
from slimsched.models.slimresnet import weights as resnet_weights
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimvit import weights as vit_weights
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit


def build(shape: Shape) -> SlimNetwork:
    """Make a new network of this shape."""
    return SlimVit(shape) if isinstance(shape, VitShape) else SlimResNet(shape)


def load(path: Path | None = None) -> Trained[SlimNetwork, Shape]:
    """Load either network from a training folder; without a path, the shipped model."""
    if path is not None and _is_vit(card_path(path)):
        return vit_weights.load(path)
    return resnet_weights.load(path)


class _Facts(Struct, frozen=True):
    shape: dict[str, object] = {}


def _is_vit(card_path: Path) -> bool:
    try:
        return "heads" in msgspec.json.decode(card_path.read_bytes(), type=_Facts).shape
    except (OSError, msgspec.DecodeError):
        return False
