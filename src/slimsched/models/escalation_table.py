"""What a further plan is worth once a plan has answered with a certain confidence.

    right[p, l, q] = P(plan q is right | plan p answered at level l)

It is counted on examples, and smoothed: in each plan p, a polynomial of low degree in the level is fitted to
the answers of each plan q. Counting alone would have a few hundred examples per level, and the best of many
plans would look better than it is. This module imports no torch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.models.confidence import LEVELS, Confidences
from slimsched.models.spec import Path

Values = NDArray[np.float64]

DEGREE = 3
"""Degree of the polynomial in the level."""


class EscalationTable:
    """Rows are the plans that have levels; columns are all plans.

    `share[p, l]` is the share of examples at each level, `agreed[p, l]` how often the answer is that of the
    widest plan, and `kept[p, q]` how many segments the two plans have in common at the start.
    """

    def __init__(
        self,
        plans: Sequence[Path],
        confidences: Confidences,
        right: NDArray[np.bool_],
        among: NDArray[np.int64],
    ) -> None:
        levels = confidences.levels[:, among]
        self.plans, self.row = confidences.plans, confidences.row
        self.confidences = confidences
        known = right[:, among].astype(np.float64)
        agrees = confidences.agrees[:, among].astype(np.float64)
        self.share = np.zeros((len(self.plans), LEVELS))
        self.agreed = np.zeros((len(self.plans), LEVELS))
        self.right = np.zeros((len(self.plans), LEVELS, len(plans)))
        for row, level in enumerate(levels):
            counts = np.bincount(level, minlength=LEVELS).astype(np.float64)
            self.share[row] = counts / counts.sum()
            sums = np.zeros((LEVELS, len(plans) + 1))
            np.add.at(sums[:, :-1], level, known.T)
            np.add.at(sums[:, -1], level, agrees[row])
            fitted = _smooth(counts, sums)
            self.right[row], self.agreed[row] = fitted[:, :-1], fitted[:, -1]
        self.kept = np.array(
            [[_common(plans[one], other) for other in plans] for one in self.plans], dtype=np.int64
        ).reshape(len(self.plans), len(plans))

    def sure(self, plan: int, level: int) -> float:
        """Return the chance that a plan's answer at this level is right."""
        return float(self.right[self.row[plan], level, plan])


def _smooth(counts: Values, sums: Values) -> Values:
    """Fit a polynomial in the level to every column, weighted by the examples at each level."""
    at = (np.arange(LEVELS) + 0.5) / LEVELS
    powers = at[:, None] ** np.arange(DEGREE + 1)
    gram = powers.T @ (counts[:, None] * powers) + 1e-6 * np.eye(DEGREE + 1)
    fitted: Values = np.clip(powers @ np.linalg.solve(gram, powers.T @ sums), 0.0, 1.0)
    return fitted


def _common(one: Path, other: Path) -> int:
    """Return how many first choices two plans have in common."""
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same
