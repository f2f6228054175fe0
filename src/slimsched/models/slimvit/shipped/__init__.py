"""The trained SlimViT that comes with the package: a model folder as `slim model train` writes it."""

from importlib import resources
from pathlib import Path


def folder() -> Path:
    """Return the folder of the shipped SlimViT."""
    return Path(str(resources.files(__name__)))
