"""Trained SlimResNets on disk, and the one that comes with the package."""

from pathlib import Path

from slimsched.models import model_files
from slimsched.models.model_files import Trained
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shape import NetworkShape

TrainedModel = Trained[SlimResNet, NetworkShape]


def load(path: Path | None = None) -> TrainedModel:
    """Load the model of a training folder or of its .json; without a path, the shipped model."""
    return model_files.load(path or shipped.folder() / f"{shipped.NAME}.json", NetworkShape, SlimResNet)
