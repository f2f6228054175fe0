"""A prospect: what the choices after a path may still come to, when device time has a price.

A choice is worth what the best plan that begins with it is worth: the accuracy of that plan, less the price
of the work that is left after the choice. Without a queue the best plan is the widest; the dearer device time
is, the narrower it goes on. Plans that are best at no price are left out, so few remain.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel

Values = NDArray[np.float64]


class Prospect:
    """The choices after one path of a model, on the servers of a cluster."""

    def __init__(self, cluster: Cluster, model: ServedModel, path: Path) -> None:
        tree = model.tree
        self.numbers = [int(choice) for choice in tree.choices[tree.row[path]]]
        """The choices, narrowest first."""
        longer = [(*path, choice) for choice in self.numbers]
        self.work_s: Values = np.array([cluster.work_s[model.key_of_path(one)] for one in longer])
        """Device time of the next segment, (choices, servers)."""
        kept = [_best_plans(cluster, model, one) for one in longer]
        most = max(len(accuracy) for accuracy, _ in kept)
        again = [np.arange(most) % len(accuracy) for accuracy, _ in kept]  # equally many for each choice
        self._accuracy: Values = np.array([one[0][rows] for one, rows in zip(kept, again, strict=True)])
        self._rest_s: Values = np.array([one[1][rows] for one, rows in zip(kept, again, strict=True)])

    def gain(self, price_per_s: Values) -> Values:
        """Return what each choice is worth above the narrowest, (choices, servers), in accuracy.

        `price_per_s` says how much accuracy a second of device time costs on each server.
        """
        worth: Values = (self._accuracy[:, :, None] - price_per_s * self._rest_s).max(axis=1)
        worth -= worth[0].copy()
        return worth

    def gain_on(self, server: int, price_per_s: float) -> Values:
        """Return the same for one server, (choices,)."""
        worth: Values = (self._accuracy - price_per_s * self._rest_s[:, :, server]).max(axis=1)
        worth -= float(worth[0])
        return worth


def _best_plans(cluster: Cluster, model: ServedModel, path: Path) -> tuple[Values, Values]:
    """Return the accuracy (plans,) and the work after a path (plans, servers) of plans best at some price."""
    tree, done = model.tree, len(path)
    plans = [plan for plan in tree.plans if plan[:done] == path]
    accuracy = np.array([model.weight * model.quality.accuracy(plan) for plan in plans])
    rest_s = np.array([_rest_s(cluster, model, plan, done) for plan in plans])
    kept: set[int] = set()
    for column in np.unique(rest_s, axis=1).T:
        kept.update(_upper_hull(column, accuracy))
    rows = sorted(kept)
    return accuracy[rows], rest_s[rows]


def _rest_s(cluster: Cluster, model: ServedModel, plan: Path, done: int) -> Values:
    total = np.zeros(len(cluster))
    for key in model.legs(plan)[done:]:
        total = total + cluster.work_s[key]
    return total


def _upper_hull(work_s: Values, accuracy: Values) -> Sequence[int]:
    """Return the numbers of the points with the most accuracy less price times work, at any price from 0."""
    hull: list[int] = []
    for point in np.lexsort((-accuracy, work_s)).tolist():
        if hull and accuracy[point] <= accuracy[hull[-1]]:
            continue
        while len(hull) > 1 and not _bends_down(work_s, accuracy, hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _bends_down(work_s: Values, accuracy: Values, first: int, second: int, third: int) -> bool:
    """Whether accuracy rises more slowly after the second point than before it."""
    before = (accuracy[second] - accuracy[first]) * (work_s[third] - work_s[second])
    after = (accuracy[third] - accuracy[second]) * (work_s[second] - work_s[first])
    return bool(before > after)
