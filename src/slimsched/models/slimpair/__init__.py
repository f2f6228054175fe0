"""SlimResNet and SlimViT joined: one model for CIFAR-100 whose plans are those of both."""

from importlib import resources
from pathlib import Path


def folder() -> Path:
    """Return the folder of the pair."""
    return Path(str(resources.files(__name__)))
