"""A trained policy on disk: weights in safetensors, and a JSON file that says how they were made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from slimsched.core.config import DataError

Weights = dict[str, NDArray[np.float64]]


def write_policy(path: Path, weights: Weights, story: dict[str, Any]) -> None:
    """Write the weights, and their story (options, seeds, curve, date) under the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.astype(np.float32) for name, value in weights.items()}, path)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in story.items())
    path.with_suffix(".json").write_text(f"{{\n{lines}\n}}\n")


def read_policy(file: str | Path) -> tuple[Weights, dict[str, Any]]:
    """Read the weights of a policy, and their story."""
    path = Path(file)
    try:
        weights = {name: value.astype(np.float64) for name, value in load_file(path).items()}
        story = read_story(path.with_suffix(".json"))
        if not all(np.isfinite(value).all() for value in weights.values()):
            raise DataError("some weights are not finite")
    except (OSError, SafetensorError, DataError) as error:
        raise DataError(f"policy {path.name} cannot be read ({error}); train it again") from None
    return weights, story


def read_story(file: str | Path) -> dict[str, Any]:
    """Read a JSON file that a training run wrote."""
    try:
        story = json.loads(Path(file).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{Path(file).name} cannot be read ({error})") from None
    if not isinstance(story, dict):
        raise DataError(f"{Path(file).name} holds no results of a training run")
    return story
