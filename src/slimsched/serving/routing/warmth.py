"""Warmth: which choices a server has loaded, so that it can run them at once.

A choice is warm if it was used recently; in nested models every narrower choice is warm too. A cold choice
must be loaded first, and a busy device refuses to load (U_blk). The head of its queue, and everything behind
it, would then wait until the device is idle. So a router does not ask a busy server for a cold choice, and it
keeps the widest warm choice loaded with one request every few seconds.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation

KEPT_S = 4.0
"""How long a used instance is expected to stay loaded; servers unload after 5 s."""

DUE_S = 3.0
"""After this time without use, a single request asks for the choice again."""

BUSY = 0.9
"""At this utilization or above, a server may refuse to load."""


class Warmth:
    """Remembers when each choice, or in nested models a wider one, was last asked for on each server."""

    def __init__(self, cluster: Cluster) -> None:
        self._nested = [model.spec.nested for model in cluster.models]
        self._asked_s = [
            [np.full((len(cluster), len(choices)), -inf) for choices in model.spec.segments]
            for model in cluster.models
        ]

    def cold(self, seen: Observation) -> NDArray[np.bool_]:
        """(choices, servers): what a busy server would have to load although a narrower choice is warm.

        Where nothing narrower is warm the server must load: it could not narrow when queues grow.
        """
        warm = self._asked_s[seen.model][seen.segment] >= seen.now_s - KEPT_S
        narrower = np.logical_or.accumulate(warm, axis=1)
        cold: NDArray[np.bool_] = ~warm & (narrower & (seen.utilization >= BUSY)[:, None])
        return cold.T

    def due(self, seen: Observation, server: int) -> int | None:
        """Return the widest warm choice if it is time to ask for it again."""
        asked_s = self._asked_s[seen.model][seen.segment][server]
        warm = np.flatnonzero(asked_s >= seen.now_s - KEPT_S)
        return int(warm[-1]) if len(warm) and asked_s[warm[-1]] < seen.now_s - DUE_S else None

    def ask(self, seen: Observation, server: int, choice: int) -> None:
        """Note that a block of the head is sent at this choice."""
        narrowest = 0 if self._nested[seen.model] else choice
        self._asked_s[seen.model][seen.segment][server, narrowest : choice + 1] = seen.now_s

    def forget(self, servers: NDArray[np.bool_]) -> None:
        """Note that these servers are down and have lost everything."""
        for model in self._asked_s:
            for asked_s in model:
                asked_s[servers] = -inf
