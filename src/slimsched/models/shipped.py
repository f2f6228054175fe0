"""What comes with the package: the default model's spec, quality, figures and weights. Imports no torch."""

import json
from functools import cache
from pathlib import Path

from slimsched.core.config import DataError
from slimsched.models.package import ModelCard, network_figures, network_spec, read_card
from slimsched.models.quality import QualityTable, read_quality
from slimsched.models.slimresnet.shape import PAPER_PERCENT, SLIM_RESNET
from slimsched.models.slimresnet.shipped import CARD, QUALITY
from slimsched.models.slimvit.shipped import FOLDER
from slimsched.models.spec import SHIPPED_MODELS, SLIMRESNET, SLIMVIT, ModelFigures, ModelSpec, PlanTree
from slimsched.models.width import format_widths

PUBLISHED_PERCENT = {format_widths(widths): percent for widths, percent in PAPER_PERCENT.items()}
"""The accuracy that the paper reports for eight plans of the default model."""


@cache
def default_spec() -> ModelSpec:
    """Describe the default model."""
    return network_spec(SLIM_RESNET, SLIMRESNET, tuple(json.loads(CARD.read_text())["classes"]))


def default_quality() -> QualityTable:
    """Read the measured accuracy of the default model's plans."""
    return read_quality(QUALITY, PlanTree(default_spec().plans))


def default_figures() -> ModelFigures:
    """Compute the default model's figures."""
    return network_figures(SLIM_RESNET)


def default_card() -> ModelCard:
    """Read how the default model was trained."""
    return read_card(CARD)


def shipped_folder(name: str) -> Path | None:
    """Return the folder of a shipped model; None for the default model, which needs none, and for others."""
    return FOLDER if name == SLIMVIT else None


def find_folder(source: str, beside: Path | None = None) -> Path:
    """Find a model's folder: a shipped one by its name, any other beside the scenario or by its path."""
    if (shipped := shipped_folder(source)) is not None:
        return shipped
    for folder in (*([beside / source] if beside is not None else []), Path(source)):
        if folder.is_dir():
            return folder
    raise DataError(
        f"no model '{source}': give {', '.join(map(repr, SHIPPED_MODELS))} or a model folder; "
        f"make a new one with slim model new {source}"
    )
