"""What a further plan is worth once a plan has answered with a certain confidence.

    right[p, l, q] = P(plan q is right | plan p answered at level l)

It is counted on examples, and smoothed. The own accuracy of p is a cubic in the level. What q adds to it is
a · d + b · d², where d falls from 1 at the lowest level to 0 at the highest: an answer that p is sure of
leaves nothing to gain. Counting alone would have a few hundred examples per level, and the best of many plans
would look better than it is. This module imports no torch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.models.confidence import LEVELS, Confidences
from slimsched.models.spec import Path

Values = NDArray[np.float64]

_AT = (np.arange(LEVELS) + 0.5) / LEVELS
OWN: Values = _AT[:, None] ** np.arange(4)
"""The curves of which a plan's own accuracy is made, by level."""

GAIN: Values = (1.0 - _AT)[:, None] ** np.array([1, 2])
"""The curves of which another plan's gain is made, by level."""


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
        self._levels = levels
        self._usual: dict[tuple[int, int], Values] = {}
        known = right[:, among].astype(np.float64)
        agrees = confidences.agrees[:, among].astype(np.float64)
        self.share = np.zeros((len(self.plans), LEVELS))
        self.agreed = np.zeros((len(self.plans), LEVELS))
        self.right = np.zeros((len(self.plans), LEVELS, len(plans)))
        for row, level in enumerate(levels):
            counts = np.bincount(level, minlength=LEVELS).astype(np.float64)
            self.share[row] = counts / counts.sum()
            own = known[self.plans[row]]
            alone = np.stack([own, agrees[row]])
            fitted = _smooth(OWN, level, counts, alone)
            self.agreed[row] = np.clip(fitted[:, 1], 0.0, 1.0)
            gain = _smooth(GAIN, level, counts, known - own)
            self.right[row] = np.clip(fitted[:, :1] + gain, 0.0, 1.0)
            worse = known.mean(axis=1) <= own.mean()  # on the whole: such a plan is no help
            worse[self.plans[row]] = False
            self.right[row][:, worse] = 0.0
        self.kept = np.array(
            [[_common(plans[one], other) for other in plans] for one in self.plans], dtype=np.int64
        ).reshape(len(self.plans), len(plans))

    def usual(self, plan: int, level: int, after: int) -> float:
        """Return what plan `after` says about its answers in the mean, where `plan` answered at a level.

        Examples at a low level are hard, so `after` is less sure of them than of others, and still too sure.
        """
        known = self._usual.get((plan, after))
        if known is None:
            levels, said = self._levels[self.row[plan]], self.right[self.row[after], :, after]
            sums = np.bincount(levels, weights=said[self._levels[self.row[after]]], minlength=LEVELS)
            known = self._usual[plan, after] = sums / np.maximum(np.bincount(levels, minlength=LEVELS), 1)
        return float(known[level])

    def sure(self, plan: int, level: int) -> float:
        """Return the chance that a plan's answer at this level is right."""
        return float(self.right[self.row[plan], level, plan])


def _smooth(curves: Values, level: NDArray[np.uint8], counts: Values, values: Values) -> Values:
    """Fit the curves to values (columns, examples) by least squares; return the fit (levels, columns)."""
    sums = np.stack([np.bincount(level, weights=row, minlength=LEVELS) for row in values], axis=1)
    gram = curves.T @ (counts[:, None] * curves) + 1e-9 * np.eye(curves.shape[1])
    fitted: Values = curves @ np.linalg.solve(gram, curves.T @ sums)
    return fitted


def _common(one: Path, other: Path) -> int:
    """Return how many first choices two plans have in common."""
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same
