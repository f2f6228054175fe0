"""What an evaluation measures: which answers are right, what they are, and how sure the model is of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.confidence import MOST_PLANS, Confidences
from slimsched.models.quality import choosing_half


class Measured(Struct, frozen=True, kw_only=True):
    """One row per plan, one column per example.

    `answers` are the classes that were named. `confidence` is None if the model does not say how sure it is.
    """

    correct: NDArray[np.bool_]
    answers: NDArray[np.int32]
    confidence: NDArray[np.float32] | None = None

    def confidences(self, widest: int, costs: Sequence[float]) -> Confidences | None:
        """Return the levels of the plans that are worth stopping at; None if the model is never sure.

        `widest` is the number of the widest plan, `costs` is what each plan costs.
        """
        if self.confidence is None:
            return None
        plans = worth_stopping(self.correct.mean(axis=1), np.asarray(costs, dtype=np.float64), widest)
        agrees = self.answers[plans] == self.answers[widest]
        return Confidences.measured(
            plans, self.confidence[plans], agrees, choosing_half(self.correct.shape[1])
        )


def worth_stopping(
    accuracy: NDArray[np.float64], costs: NDArray[np.float64], widest: int, most: int = MOST_PLANS
) -> list[int]:
    """Return the plans nearest to the best mixtures of plans at their cost, and always the widest."""
    best = _front(accuracy, costs)
    missing = np.interp(costs, costs[best], accuracy[best]) - accuracy
    missing[widest] = -np.inf
    return sorted(int(plan) for plan in missing.argsort(kind="stable")[:most])


def _front(accuracy: NDArray[Any], costs: NDArray[Any]) -> list[int]:
    """Return the plans on the concave front of accuracy over cost, cheapest first."""
    front: list[int] = []
    for plan in np.lexsort((-accuracy, costs)).tolist():
        if front and accuracy[plan] <= accuracy[front[-1]]:
            continue
        while len(front) > 1 and _is_below(front[-1], front[-2], plan, accuracy, costs):
            front.pop()
        front.append(plan)
    return front


def _is_below(middle: int, left: int, right: int, accuracy: NDArray[Any], costs: NDArray[Any]) -> bool:
    """Whether a plan lies on or below the line between two others."""
    rise = (accuracy[right] - accuracy[left]) * (costs[middle] - costs[left])
    return bool((accuracy[middle] - accuracy[left]) * (costs[right] - costs[left]) <= rise)
