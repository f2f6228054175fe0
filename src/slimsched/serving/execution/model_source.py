"""Where served models come from: the shipped SlimResNet and SlimViT, or a model folder."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slimsched.kernel.errors import DataError
from slimsched.models.package import read_figures, read_quality, read_spec
from slimsched.models.plan_tree import PlanTree
from slimsched.models.quality import QualityTable
from slimsched.models.quality import read_quality as read_table
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.shape import SLIM_RESNET
from slimsched.models.slimresnet.spec import NAME, plan_tree, slimresnet_figures, slimresnet_spec
from slimsched.models.slimvit import shipped as slimvit_shipped
from slimsched.models.slimvit.spec import NAME as SLIMVIT
from slimsched.models.spec import ModelSpec
from slimsched.serving.domain.served_model import ServedModel

if TYPE_CHECKING:
    from slimsched.models.elastic import ElasticModel


def shipped_model(quality: QualityTable | None = None) -> ServedModel:
    """Return the SlimResNet that comes with the package, with its measured quality or another table."""
    table = quality or read_table(shipped.quality_path(), plan_tree(SLIM_RESNET))
    spec = slimresnet_spec(SLIM_RESNET, labels=shipped.labels())
    return ServedModel(spec, table, slimresnet_figures(SLIM_RESNET))


def read_model(source: str, beside: Path | None = None, *, rated: bool = True) -> ServedModel:
    """Read a model without its code: a shipped one by its name, any other from its folder.

    A folder is looked up beside the scenario first, then in the working directory. Without `rated`, the
    model's plans need not have been evaluated.
    """
    if source == NAME:
        return shipped_model()
    folder = find_folder(source, beside)
    spec = read_spec(folder)
    quality = read_quality(folder, spec) if rated else _unrated(spec)
    return ServedModel(spec, quality, read_figures(folder, spec), folder=str(folder.resolve()))


def _unrated(spec: ModelSpec) -> QualityTable:
    """Return a table in which all plans have the same accuracy."""
    tree = PlanTree(spec.plans)
    return QualityTable(tree, name="not evaluated", accuracy=np.ones(len(tree.plans)))


def find_folder(source: str, beside: Path | None = None) -> Path:
    """Find a model's folder."""
    if source == SLIMVIT:
        return slimvit_shipped.folder()
    for folder in (*([beside / source] if beside is not None else []), Path(source)):
        if folder.is_dir():
            return folder
    raise DataError(
        f"no model '{source}': give '{NAME}', '{SLIMVIT}' or a model folder; "
        f"make a new one with slim model new {source}"
    )


def load_elastic(model: ServedModel) -> "ElasticModel":
    """Load a model's code and weights."""
    if model.folder:
        from slimsched.models.package import load_model

        return load_model(Path(model.folder))
    from slimsched.models.slimresnet.elastic import trained_model

    return trained_model()
