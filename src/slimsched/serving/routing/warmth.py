"""Which choices a server can run at once: those it was lately asked for, and in nested models narrower ones.

A choice that no loaded instance fits must be loaded first, and a busy device refuses to load (U_blk): the
head of its queue, and all behind it, then wait until a sample of the sensors shows it idle. So what is cold
is not asked for where the device is busy, and the widest warm choice is kept so by one request now and then.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation

KEPT_S = 4.0
"""Time for which an instance that was used is taken to stay loaded; servers unload after 5 s."""

DUE_S = 3.0
"""A choice that was not used for this time is asked for by a single request."""

BUSY = 0.9
"""Utilization from which on loading may be refused."""


class Warmth:
    """When each choice (in nested models it, or a wider one) was last asked for, by segment and server."""

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
        """The widest warm choice, if it is time to ask for it again."""
        asked_s = self._asked_s[seen.model][seen.segment][server]
        warm = np.flatnonzero(asked_s >= seen.now_s - KEPT_S)
        return int(warm[-1]) if len(warm) and asked_s[warm[-1]] < seen.now_s - DUE_S else None

    def ask(self, seen: Observation, server: int, choice: int) -> None:
        """Note that a block of the head goes out at this choice."""
        narrowest = 0 if self._nested[seen.model] else choice
        self._asked_s[seen.model][seen.segment][server, narrowest : choice + 1] = seen.now_s

    def forget(self, servers: NDArray[np.bool_]) -> None:
        """Note that servers which are down have lost everything."""
        for model in self._asked_s:
            for asked_s in model:
                asked_s[servers] = -inf
