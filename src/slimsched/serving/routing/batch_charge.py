"""Batch charges: what batches cost by themselves, as work per example, for the prices of a router.

The unit of work is one widest plan on the same server. What first plans are charged changes with every batch.
What plans are charged that go on after an answer is part of large tables, so it changes only now and then.
"""

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.routing.observation import Observation

Values = NDArray[np.float64]

CHANGE, LEAST_CHANGE = 0.25, 0.01
"""A charge is set anew when it is off by this share and by this much work."""

EVERY_S = 1.0
"""It is set anew at most once in this time."""


class BatchCharge:
    """Follows what servers learn; `full_s` is the time of a widest plan by server, `kind_of` its kind."""

    def __init__(self, full_s: Values, kind_of: NDArray[np.int64]) -> None:
        self._full_s, self._kind_of = full_s, kind_of
        self._servers = np.bincount(kind_of)  # by kind
        self._further: Values = np.zeros(len(self._servers))
        self._set_s = -EVERY_S

    def first(self, seen: Observation, plans_per_s: Values) -> float:
        """Return the charge of a batch to each example of a first plan, the mean over servers."""
        if not seen.first_extra_s.any():
            return 0.0
        # an example's share of busy time, times the plans that fit into it
        return float((seen.first_extra_s * plans_per_s) @ plans_per_s / plans_per_s.sum())

    def further(self, seen: Observation) -> Values | None:
        """Return the charge to plans that go on, by kind, if it should be set anew."""
        if seen.now_s - self._set_s < EVERY_S:
            return None
        self._set_s = seen.now_s
        by_server = seen.further_extra_s / (self._full_s * seen.slowdown)
        charge = np.bincount(self._kind_of, by_server) / self._servers
        off = np.abs(charge - self._further)
        if not (off > np.maximum(LEAST_CHANGE, CHANGE * self._further)).any():
            return None
        self._further = charge
        return charge
