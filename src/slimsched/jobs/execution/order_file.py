"""The file of a learned order of jobs: its weights, and how they were trained, as one JSON file."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from slimsched.jobs.scheduling.policies.learned_order import SHIFTS, Features, LearnedOrder, Values
from slimsched.kernel.errors import DataError

SHIPPED = Path(__file__).parent / "shipped" / "job-order.json"
"""The order that comes with the package."""


def write_order(path: Path, weights: Mapping[str, Values], story: dict[str, Any]) -> None:
    """Write the weights, and the story of their training."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = {name: np.round(value, 4).tolist() for name, value in weights.items()}
    path.write_text(json.dumps({**story, "features": Features._fields, "shifts": SHIFTS, "weights": rounded}))


@cache
def read_order(path: Path) -> dict[str, Values]:
    """Read the weights; those trained on other features are refused."""
    try:
        content = json.loads(path.read_text())
        if tuple(content["features"]) != Features._fields or tuple(content["shifts"]) != SHIFTS:
            raise ValueError("it was trained on other features")
        weights = {name: np.array(value, dtype=np.float64) for name, value in content["weights"].items()}
        LearnedOrder(weights).probabilities(Features(*[0.0] * len(Features._fields)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"order {path.name} cannot be read ({error}); train it with: slim jobs train"
        ) from None
    return weights
