"""The trained model that comes with the package: weights, card and correctness bits."""

from importlib import resources
from pathlib import Path

NAME = "slimresnet-cifar100"


def folder() -> Path:
    """Where the package keeps its trained model."""
    return Path(str(resources.files(__name__)))


def quality_path() -> Path:
    """Where the correctness bits of the shipped model lie."""
    return folder() / f"{NAME}-correct.npz"
