"""The least that a request may still cost: the cheapest plan that its terms allow, from where it is."""

from bisect import bisect_left
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import MOST_KEYS, Key, Request

Values = NDArray[np.float64]


class Rest:
    """The segments of a plan that a request has still to run.

    `work_s` is their device time per example in full batches, on a server of mean speed.
    """

    def __init__(self, cluster: Cluster, keys: list[Key], work_s: float) -> None:
        self._cluster, self._keys, self.work_s = cluster, keys, work_s
        self.alone_s = lru_cache(maxsize=128)(self._alone_s)

    def _alone_s(self, examples: int) -> float:
        """Time of N examples as one batch, on the fastest server when it has nothing else to do."""
        size = min(examples, self._cluster.batch_limit)
        profiles = {id(one): one for one in self._cluster.profiles}.values()
        return min(sum(one.latency_s(key, size) for key in self._keys) for one in profiles)


class CheapestRest:
    """Finds the cheapest rest of a request; the results are kept, so that asking costs little."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.each_s = lru_cache(maxsize=MOST_KEYS)(self._each_s)
        narrowest_s = [min(self._plans_s(m), key=np.mean) for m in cluster.active or cluster.models]
        mean_s: Values = np.mean(narrowest_s, axis=0)
        self.slowness: Values = mean_s / mean_s.mean()
        """How slow each server is beside the mean."""
        self._fronts = lru_cache(maxsize=None)(self._front)
        self._stated = lru_cache(maxsize=None)(self._stated_rest)

    def of(self, model: int, path: Path, plan: int, min_accuracy: float) -> Rest:
        """Return the cheapest rest after a path: of the stated plan, or of one with this accuracy."""
        if plan >= 0:
            return self._stated(model, len(path), plan)
        accuracies, rests = self._fronts(model, path)
        return rests[min(bisect_left(accuracies, min_accuracy), len(rests) - 1)]

    def of_request(self, request: Request) -> Rest:
        """Return the cheapest rest of a request."""
        return self.of(request.model, request.path, request.plan, request.min_accuracy)

    def _each_s(self, key: Key) -> Values:
        """Device time per example of a key in full batches, one value per server."""
        limit = self._cluster.batch_limit
        return np.array([profile.latency_s(key, limit) / limit for profile in self._cluster.profiles])

    def _plans_s(self, model: ServedModel) -> list[Values]:
        """Device time per example of each plan, one value per server."""
        return [np.sum([self.each_s(key) for key in model.legs(plan)], axis=0) for plan in model.tree.plans]

    def _rest(self, keys: list[Key]) -> Rest:
        work_s = sum([float((self.each_s(key) / self.slowness).mean()) for key in keys])
        return Rest(self._cluster, keys, work_s)

    def _stated_rest(self, model: int, done: int, plan: int) -> Rest:
        served = self._cluster.models[model]
        return self._rest(served.legs(served.tree.plans[plan])[done:])

    def _front(self, model: int, path: Path) -> tuple[list[float], list[Rest]]:
        """Return accuracies and rests of the plans that no cheaper one beats, by rising accuracy."""
        served = self._cluster.models[model]
        plans = [plan for plan in served.tree.plans if plan[: len(path)] == path]
        rests = [
            (self._rest(served.legs(plan)[len(path) :]), served.quality.accuracy(plan)) for plan in plans
        ]
        front: list[tuple[float, Rest]] = []
        for rest, accuracy in sorted(rests, key=lambda one: one[0].work_s):
            if not front or accuracy > front[-1][0]:
                front.append((accuracy, rest))
        return [accuracy for accuracy, _ in front], [rest for _, rest in front]
