"""A trained policy on disk: weights in safetensors, and beside them a JSON file about the training."""

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


def write_policy(path: Path, weights: Weights, metadata: dict[str, Any]) -> None:
    """Write the weights, and beside them the metadata: options, seeds, curve and date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.astype(np.float32) for name, value in weights.items()}, path)
    path.with_suffix(".json").write_text(json.dumps(metadata, indent=1) + "\n")


def read_policy(name_or_path: str) -> tuple[Weights, dict[str, Any]]:
    """Read a shipped policy by its name, or any policy by its path."""
    path = Path(name_or_path)
    if path.suffix != ".safetensors":
        path = SHIPPED / f"{name_or_path}.safetensors"
        if not path.is_file():
            raise UnknownNameError("policy", name_or_path, shipped_policies())
    try:
        weights = {name: value.astype(np.float64) for name, value in load_file(path).items()}
        metadata = json.loads(path.with_suffix(".json").read_text())
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise DataError(f"policy {path.name} cannot be read ({error}); train it again") from None
    return weights, metadata


def shipped_policies() -> list[str]:
    """Return the names of the policies in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))
