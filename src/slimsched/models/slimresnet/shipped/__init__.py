"""The trained model that comes with the package: weights, card and correctness bits."""

import json
from functools import cache
from importlib import resources
from pathlib import Path

NAME = "slimresnet-cifar100"


def folder() -> Path:
    """Where the package keeps its trained model."""
    return Path(str(resources.files(__name__)))


@cache
def labels() -> tuple[str, ...]:
    """The names of the classes that the shipped model tells apart."""
    card = json.loads((folder() / f"{NAME}.json").read_text())
    return tuple(card["classes"])


def quality_path() -> Path:
    """Where the correctness bits of the shipped model lie."""
    return folder() / f"{NAME}-correct.npz"
