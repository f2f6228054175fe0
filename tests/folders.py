"""Model folders for tests: the skeleton, and small ones with something wrong."""

from pathlib import Path

from slimsched.models.skeleton.writing import write_skeleton

TOML = """
name = "tiny"
code = "model.py:build"
{top}
[[input]]
name = "x"
datatype = "FP32"
shape = [4]
[[output]]
name = "y"
datatype = "FP32"
shape = [2]
{segments}
"""
SEGMENTS = """
[[segment]]
choices = ["0.5", "1.0"]
[[segment]]
choices = ["0.5", "1.0"]
"""
CODE = """
import torch
from torch import nn
from slimsched.models.elastic import ElasticModel

class Model(ElasticModel):
    def __init__(self, spec):
        self.spec = spec
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def segment(self, index, choice, previous):
        if index == 0:
            used = slice(None) if choice == "1.0" else slice(4)
            def run(tensors):
                y = tensors[0] @ self.first.weight.T[:, used]
                return (torch.nn.functional.pad(y, (0, 8 - y.shape[1])),)
            return run
        scale = float(choice)
        return lambda tensors: (self.second(tensors[0]) * scale,)

def build(spec):
    return Model(spec)
"""


def tiny_folder(folder: Path, *, top: str = "", segments: str = SEGMENTS, code: str = CODE) -> Path:
    """Write a model of two segments whose choices hand over the same shape."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.toml").write_text(TOML.format(top=top, segments=segments))
    (folder / "model.py").write_text(code)
    return folder


def skeleton_folder(folder: Path) -> Path:
    """Write the skeleton."""
    write_skeleton(folder)
    return folder
