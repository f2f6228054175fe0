"""What comes with the package: the default model's spec, quality, figures and weights. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING

from slimsched.models.quality import QualityTable, read_quality
from slimsched.models.slimresnet import shipped as slimresnet_shipped
from slimsched.models.slimresnet.shape import (
    PAPER_PERCENT,
    SLIM_RESNET,
    plan_tree,
    slimresnet_figures,
    slimresnet_spec,
)
from slimsched.models.slimvit import shipped as slimvit_shipped
from slimsched.models.spec import SLIMVIT, ModelFigures, ModelSpec
from slimsched.models.width import format_widths

if TYPE_CHECKING:
    from slimsched.models.elastic import ElasticModel

PUBLISHED_PERCENT = {format_widths(widths): percent for widths, percent in PAPER_PERCENT.items()}
"""The accuracy that the paper reports for eight plans of the default model."""


def default_spec() -> ModelSpec:
    """Describe the default model."""
    return slimresnet_spec(SLIM_RESNET, labels=slimresnet_shipped.labels())


def default_quality() -> QualityTable:
    """Read the measured accuracy of the default model's plans."""
    return read_quality(slimresnet_shipped.quality_path(), plan_tree(SLIM_RESNET))


def default_figures() -> ModelFigures:
    """Compute the default model's figures."""
    return slimresnet_figures(SLIM_RESNET)


def load_default() -> "ElasticModel":
    """Load the default model's weights; this needs torch."""
    from slimsched.models.slimresnet.elastic import trained_model

    return trained_model()


def shipped_folder(name: str) -> Path | None:
    """Return the folder of a shipped model; None for the default model, which needs none, and for others."""
    return slimvit_shipped.folder() if name == SLIMVIT else None
