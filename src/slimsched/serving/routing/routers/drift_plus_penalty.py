"""Drift plus penalty (Neely): trade queue growth against lost accuracy."""

from random import Random

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import Amount
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route

Values = NDArray[np.float64]


class DriftPlusPenaltyRouter:
    """Minimises Q_i · work_i(c) + move_i − V · accuracy(c) over servers i and choices c.

    Q_i is the backlog of server i in seconds. work_i(c) is the head's service time there, divided by the mean
    service time at the widest choice. move_i is the time to move its inputs there. accuracy(c) is the
    expected accuracy after this choice. V (seconds per unit of accuracy) sets how much queue a point is
    worth.
    """

    def __init__(self, cluster: Cluster, rng: Random, v: Amount = 2.0) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._v = v
        self._ahead = [
            [_ahead(cluster, model, path) for path in model.tree.paths] for model in cluster.models
        ]

    def route(self, seen: Observation) -> Route:
        """Score every (choice, server) and take the least."""
        tree = self._cluster.models[seen.model].tree
        row = tree.row[seen.path]
        work, gain = self._ahead[seen.model][row]
        score = seen.backlog_s * work + self._estimate.move_s(seen) - self._v * gain[:, None]
        way, server = divmod(int(score.argmin()), len(self._cluster))
        choice = int(tree.choices[row][way])
        return Route(server, choice, self._estimate.group, "least drift plus penalty")


def _ahead(cluster: Cluster, model: ServedModel, path: Path) -> tuple[Values, Values]:
    """Return work (choices, servers) and expected accuracy (choices) of every choice after a path."""
    longer = [(*path, int(choice)) for choice in model.tree.choices[model.tree.row[path]]]
    service_s = [cluster.work_s[model.key_of_path(one)] for one in longer]
    gain = np.array([model.weight * model.quality.expected(one) for one in longer])
    return np.array([one / service_s[-1].mean() for one in service_s]), gain
