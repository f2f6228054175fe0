"""The table of all job policies: those of `jobs`, and the learned order `rl`."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.jobs.learning.order import SHIFTS, Features, LearnedOrder
from slimsched.jobs.scheduling.policies import MANUAL, POLICIES, policy_named
from slimsched.jobs.scheduling.policy import Policy
from slimsched.kernel.errors import DataError, UnknownNameError

Values = NDArray[np.float64]

SHIPPED = Path(__file__).parent / "shipped" / "job-order.json"


def make_policy(name: str) -> Policy:
    """Make any job policy; 'rl' is the order in the package, 'rl:FILE' one trained by `slim jobs train`."""
    if name == "rl":
        return LearnedOrder(read_order(SHIPPED))
    if name.startswith("rl:"):
        return LearnedOrder(read_order(Path(name.removeprefix("rl:"))), name=name)
    if name not in POLICIES and not name.startswith("manual:"):
        raise UnknownNameError("policy", name, (*POLICIES, MANUAL, "rl", "rl:FILE"))
    return policy_named(name)


def write_order(path: Path, weights: Mapping[str, Values], story: dict[str, Any]) -> None:
    """Write the weights and how they came about as one JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = {name: np.round(value, 4).tolist() for name, value in weights.items()}
    path.write_text(json.dumps({**story, "features": Features._fields, "shifts": SHIFTS, "weights": rounded}))


@cache
def read_order(path: Path) -> dict[str, Values]:
    """Read weights; refuses those of other features."""
    try:
        found = json.loads(path.read_text())
        if tuple(found["features"]) != Features._fields or tuple(found["shifts"]) != SHIFTS:
            raise ValueError("it was trained on other features")
        weights = {name: np.array(value, dtype=np.float64) for name, value in found["weights"].items()}
        LearnedOrder(weights).probabilities(Features(*[0.0] * len(Features._fields)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"order {path.name} cannot be read ({error}); train it with: slim jobs train"
        ) from None
    return weights
