"""Where served models come from: the shipped ones by name, or a model folder."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slimsched.core.config import DataError
from slimsched.models.package import read_figures, read_quality, read_spec
from slimsched.models.quality import QualityTable
from slimsched.models.shipped import (
    default_figures,
    default_quality,
    default_spec,
    load_default,
    shipped_folder,
)
from slimsched.models.spec import DEFAULT_MODEL, SHIPPED_MODELS, ModelSpec, PlanTree
from slimsched.serving.domain.model import ServedModel

if TYPE_CHECKING:
    from slimsched.models.elastic import ElasticModel


def shipped_model(quality: QualityTable | None = None) -> ServedModel:
    """Return the default model, with its measured quality or another table."""
    return ServedModel(default_spec(), quality or default_quality(), default_figures())


def read_model(source: str, beside: Path | None = None, *, rated: bool = True) -> ServedModel:
    """Read a model without its code: a shipped one by its name, any other from its folder.

    A folder is looked up beside the scenario first, then in the working directory. Without `rated`, the
    model's plans need not have been evaluated.
    """
    if source == DEFAULT_MODEL:
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
    if (shipped := shipped_folder(source)) is not None:
        return shipped
    for folder in (*([beside / source] if beside is not None else []), Path(source)):
        if folder.is_dir():
            return folder
    raise DataError(
        f"no model '{source}': give {', '.join(map(repr, SHIPPED_MODELS))} or a model folder; "
        f"make a new one with slim model new {source}"
    )


def load_elastic(model: ServedModel) -> "ElasticModel":
    """Load a model's code and weights."""
    if model.folder:
        from slimsched.models.loading import load_model

        return load_model(Path(model.folder))
    return load_default()
