"""A trained policy on disk: weights in safetensors, beside them a JSON file that says how they came about."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from slimsched.kernel.errors import DataError, UnknownNameError

SHIPPED = Path(__file__).parent / "shipped"

Weights = dict[str, NDArray[np.float64]]


def write_policy(path: Path, weights: Weights, story: dict[str, Any]) -> None:
    """Write the weights, and the story (options, seeds, curve, date) under the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.astype(np.float32) for name, value in weights.items()}, path)
    path.with_suffix(".json").write_text(json.dumps(story, indent=1) + "\n")


def read_policy(name_or_path: str) -> tuple[Weights, dict[str, Any]]:
    """Read a shipped policy by name, or any by path."""
    path = Path(name_or_path)
    if path.suffix != ".safetensors":
        path = SHIPPED / f"{name_or_path}.safetensors"
        if not path.is_file():
            raise UnknownNameError("policy", name_or_path, shipped_policies())
    try:
        weights = {name: value.astype(np.float64) for name, value in load_file(path).items()}
        story = json.loads(path.with_suffix(".json").read_text())
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise DataError(f"policy {path.name} cannot be read ({error}); train it again") from None
    return weights, story


def shipped_policies() -> list[str]:
    """Names of the policies in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))
