"""Model folders whose answers show which model and version made them, segment by segment.

The first two numbers of an answer are the stamps that the two segments wrote; the third is the sum of the
input. An answer to which two models, or two versions, have contributed has two different stamps.
"""

from pathlib import Path

import numpy as np

from slimsched.models.package import figures_json, read_spec
from slimsched.models.quality import write_quality
from slimsched.models.spec import ModelFigures, StepFigures

TOML = """
name = "{name}"
version = "{version}"
code = "model.py:build"
[[input]]
name = "x"
datatype = "FP32"
shape = [{size}]
[[output]]
name = "y"
datatype = "FP32"
shape = [3]
[[segment]]
choices = ["small", "large"]
[[segment]]
choices = ["small", "large"]
"""
CODE = """
import torch
from slimsched.models.elastic import ElasticModel

STAMP = {stamp}


class Stamped(ElasticModel):
    def __init__(self, spec):
        self.spec = spec

    def segment(self, index, choice, previous):
        {broken}

        def first(tensors):
            total = tensors[0].sum(dim=1, keepdim=True)
            stamp = torch.full_like(total, STAMP)
            return (torch.cat([stamp, torch.zeros_like(total), total], dim=1),)

        def second(tensors):
            stamped = tensors[0].clone()
            stamped[:, 1] = STAMP
            return (stamped,)

        return first if index == 0 else second


def build(spec):
    return Stamped(spec)
"""
ACCURACIES = (0.6, 0.7, 0.75, 0.9)
"""Of the plans small,small to large,large."""


def stamped_folder(
    folder: Path,
    *,
    stamp: float,
    name: str = "",
    version: str = "1",
    size: int = 4,
    macs: int = 1_000_000,
    broken: str = "pass",
) -> Path:
    """Write a model folder, ready to be served.

    `macs` is what the figures say of a small choice; `broken` is a line that `segment` runs first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.toml").write_text(TOML.format(name=name or folder.name, version=version, size=size))
    (folder / "model.py").write_text(CODE.format(stamp=stamp, broken=broken))
    spec = read_spec(folder)
    places = spec.places()
    figures = ModelFigures(
        steps={step: StepFigures(macs * 2 ** step[1], 1000) for step in spec.steps()},
        weights=dict.fromkeys(places, 1000),
        output=dict.fromkeys(places, 3),
        workspace=dict.fromkeys(places, 10),
    )
    (folder / "figures.json").write_bytes(figures_json(spec, figures))
    example = np.arange(40) // 2  # neighbours are alike, so that both halves have the same accuracy
    correct = example[None, :] < 20 * np.array(ACCURACIES)[:, None]
    write_quality(folder / "quality.npz", correct, texts=[spec.text(plan) for plan in spec.plans])
    return folder
