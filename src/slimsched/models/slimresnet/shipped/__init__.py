"""The trained model that comes with the package: weights, card and correctness bits."""

import json
from functools import cache
from importlib import resources
from pathlib import Path

NAME = "slimresnet-cifar100"


def folder() -> Path:
    """Return the folder of the shipped model."""
    return Path(str(resources.files(__name__)))


@cache
def labels() -> tuple[str, ...]:
    """Return the class names of the shipped model."""
    card = json.loads((folder() / f"{NAME}.json").read_text())
    return tuple(card["classes"])


def quality_path() -> Path:
    """Return the path of the shipped model's correctness bits."""
    return folder() / f"{NAME}-correct.npz"
