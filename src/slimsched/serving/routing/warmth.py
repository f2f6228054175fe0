"""Which widths a server can run at once: those it was lately asked for, or narrower.

A width that no loaded instance fits must be loaded first, and a busy device refuses to load (U_blk): the head
of its queue, and all behind it, then wait until a sample of the sensors shows it idle. So what is cold is not
asked for where the device is busy, and the widest width that is warm is kept so by one image now and then.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.routing.observation import Observation

KEPT_S = 4.0
"""Time for which an instance that was used is taken to stay loaded; servers unload after 5 s."""

DUE_S = 3.0
"""A width that was not used for so long is asked for by a single image."""

BUSY = 0.9
"""Utilization from which on loading may be refused."""


class Warmth:
    """When each width, or a wider one, was last asked for, by segment and server."""

    def __init__(self, servers: int) -> None:
        self._asked_s = np.full((SEGMENTS, servers, len(WIDTHS)), -inf)

    def cold(self, seen: Observation) -> NDArray[np.bool_]:
        """(widths, servers): what a busy server would have to load; where all is cold it must load anyway."""
        warm = self._asked_s[seen.segment] >= seen.now_s - KEPT_S
        found: NDArray[np.bool_] = ~warm & (warm[:, :1] & (seen.utilization >= BUSY)[:, None])
        return found.T

    def due(self, segment: int, server: int, now_s: float) -> int | None:
        """The widest warm width, if it is time to ask for it again."""
        asked_s = self._asked_s[segment, server]
        widest = int((asked_s >= now_s - KEPT_S).sum()) - 1
        return widest if widest >= 0 and asked_s[widest] < now_s - DUE_S else None

    def ask(self, segment: int, server: int, width: int, now_s: float) -> None:
        """A block of this width goes out."""
        self._asked_s[segment, server, : width + 1] = now_s

    def forget(self, servers: NDArray[np.bool_]) -> None:
        """Servers that are down lose everything."""
        self._asked_s[:, servers] = -inf
