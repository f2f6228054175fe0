"""How sure plans are: one level per plan and example, and whether the answer is the widest plan's.

A model's confidence is a number that rises with the chance that the answer is right. Numbers of different
plans cannot be compared, so each plan has its own levels: `LEVELS` of them, with an equal share of examples
in each. Only plans that are worth stopping at have levels. This module imports no torch.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import DataError

LEVELS = 16
"""Number of levels: four bits each."""

MOST_PLANS = 64
"""How many plans have levels at most; 64 of them on 10,000 examples take 400 kB."""


class Confidences:
    """Levels of some plans.

    `plans` holds their numbers. `edges` (plans, levels - 1) says at which confidence each level but the
    first begins. `levels` and `agrees` have one column per example.
    """

    def __init__(
        self,
        *,
        plans: Sequence[int],
        edges: NDArray[np.float64],
        levels: NDArray[np.uint8],
        agrees: NDArray[np.bool_],
    ) -> None:
        if not len(plans) == len(edges) == len(levels) == len(agrees) or levels.shape != agrees.shape:
            raise DataError(
                f"confidences of {len(plans)} plans have {len(edges)} rows of edges, levels {levels.shape} "
                f"and agreement {agrees.shape}; write them again with slim model evaluate"
            )
        self.plans = [int(plan) for plan in plans]
        self.row = {plan: row for row, plan in enumerate(self.plans)}
        """The row of each plan that has levels."""
        self.edges, self.levels, self.agrees = edges, levels, agrees
        self.examples = levels.shape[1]
        self._edges: list[list[float]] = edges.tolist()
        self._typical: list[list[float]] = _typical(edges).tolist()

    @classmethod
    def measured(
        cls,
        plans: Sequence[int],
        confidence: NDArray[np.floating[Any]],
        agrees: NDArray[np.bool_],
        among: NDArray[np.int64],
    ) -> Self:
        """Make levels from measured confidences (plans, examples); their edges come from some examples."""
        shares = np.arange(1, LEVELS) / LEVELS
        edges = np.quantile(confidence[:, among].astype(np.float64), shares, axis=1).T
        edges = edges.astype(np.float32).astype(np.float64)
        levels = np.array(
            [
                np.searchsorted(row, values, side="right")
                for row, values in zip(edges, confidence, strict=True)
            ],
            dtype=np.uint8,
        )
        return cls(plans=plans, edges=edges, levels=levels, agrees=agrees)

    def level(self, plan: int, confidence: float) -> int:
        """Return the level of a confidence; the plan must have levels."""
        return bisect_right(self._edges[self.row[plan]], confidence)

    def typical(self, plan: int, example: int) -> float:
        """Return a confidence that stands for the level of an example; 0 for a plan without levels."""
        row = self.row.get(plan)
        return 0.0 if row is None else self._typical[row][self.levels[row, example]]

    def top(self, plan: int, example: int) -> int:
        """Return 0 if the plan's answer is the widest plan's, else 1; -1 for a plan without levels."""
        row = self.row.get(plan)
        return -1 if row is None else int(not self.agrees[row, example])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a quality file keeps."""
        pairs = np.pad(self.levels, ((0, 0), (0, self.levels.shape[1] % 2)))
        return {
            "sure_plans": np.array(self.plans, dtype=np.int16),
            "sure_edges": self.edges.astype(np.float32),
            "sure_levels": (pairs[:, ::2] << 4 | pairs[:, 1::2]).astype(np.uint8),
            "sure_agrees": np.packbits(self.agrees, axis=1),
        }


def read_confidences(arrays: Mapping[str, NDArray[Any]], examples: int, plans: int) -> Confidences | None:
    """Read what `Confidences.arrays` wrote; None if the file has none."""
    if "sure_levels" not in arrays:
        return None
    pairs, numbers = arrays["sure_levels"], arrays["sure_plans"].astype(np.int64)
    edges, bits = arrays["sure_edges"].astype(np.float64), arrays["sure_agrees"]
    wanted = (len(numbers), -(-examples // 2))
    if (
        pairs.dtype != np.uint8
        or pairs.shape != wanted
        or bits.dtype != np.uint8
        or bits.shape != (len(numbers), -(-examples // 8))
        or edges.shape != (len(numbers), LEVELS - 1)
        or not np.isfinite(edges).all()
        or not ((numbers >= 0) & (numbers < plans)).all()
        or len(set(numbers.tolist())) != len(numbers)
    ):
        raise ValueError(f"levels {pairs.shape} and edges {edges.shape} do not fit {wanted[0]} plans")
    levels = np.stack([pairs >> 4, pairs & 15], axis=2).reshape(len(numbers), -1)[:, :examples]
    agrees = np.unpackbits(bits, axis=1, count=examples).astype(bool)
    return Confidences(plans=numbers.tolist(), edges=edges, levels=levels.astype(np.uint8), agrees=agrees)


def _typical(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a confidence inside each level, by plan: the middle, or just beyond the outer edges."""
    first, last = edges[:, :1], edges[:, -1:]
    inner = (edges[:, :-1] + edges[:, 1:]) / 2
    below = first - np.maximum(1e-6, np.abs(first) / 2)
    typical: NDArray[np.float64] = np.hstack([below, inner, last + 1e-6])
    return typical.round(6)
