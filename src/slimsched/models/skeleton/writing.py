"""Writes the skeleton: copies the template, names the model after its folder, saves initial weights."""

import re
from pathlib import Path

import torch
from msgspec import structs
from safetensors.torch import save_file

from slimsched.core.config import DataError
from slimsched.models.loading import build_model
from slimsched.models.package import DESCRIPTION, read_description, read_spec

TEMPLATE = Path(__file__).parent / "template"
WEIGHTS = "weights.safetensors"


def write_skeleton(folder: Path) -> list[Path]:
    """Write a working model into a new or empty folder; return the paths of its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is there already and not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name) or "model"
    for source in sorted(TEMPLATE.glob("model.*")):
        text = source.read_text(encoding="utf-8").replace('name = "skeleton"', f'name = "{name}"')
        (folder / source.name).write_text(text, encoding="utf-8")
    description = structs.replace(read_description(folder), weights=None)  # there are none yet
    torch.manual_seed(0)
    model = build_model(folder, description, read_spec(folder))
    save_file(model.weights(), folder / WEIGHTS)
    return [folder / DESCRIPTION, folder / "model.py", folder / WEIGHTS]
