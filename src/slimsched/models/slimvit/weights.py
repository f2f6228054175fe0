"""Trained SlimViTs on disk."""

from pathlib import Path

from slimsched.models import model_files
from slimsched.models.model_files import Trained
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit

TrainedVit = Trained[SlimVit, VitShape]


def load(path: Path) -> TrainedVit:
    """Load the model of a training folder or of its .json."""
    return model_files.load(path, VitShape, SlimVit)
