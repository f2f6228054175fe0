"""Prices of device time: what the fluid programme says for the load at hand, corrected by what queues show.

The planner's part: at price π a request takes demand(π) networks of device time, the cluster has
capacity = Σ_i 1 / full_i networks a second, so the price must satisfy  λ · demand(π) = η · capacity.
Demand is a staircase; between two steps both prices are used in turn, in the share that meets the load.
The feedback's part: η, the share of the capacity that can be had, falls while the mean backlog is above its
target and rises while it is below.
"""

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.routing.cost_to_go import CostToGo

Values = NDArray[np.float64]

PRICES = np.concatenate([[0.0], np.geomspace(1e-3, 2.0, 60)])
ETA_RANGE = (0.2, 2.0)


class Pricing:
    """Two neighbouring prices and the share of decisions that take the lower one."""

    def __init__(
        self, costs_to_go: Sequence[CostToGo], capacity_by_kind: Values, *, integral_per_s: float
    ) -> None:
        by_kind = capacity_by_kind / capacity_by_kind.sum()
        self._demands = np.array(
            [[float(one.at(float(p), 0.0, 0.0)[1][0] @ by_kind) for p in PRICES] for one in costs_to_go]
        )  # (models, prices): work of one request
        self._demand = self._demands[0]
        self.scale = 1.0
        """What the accuracy of the most worthy model is worth: prices must reach that much further."""
        self._integral_per_s = integral_per_s
        self.eta = 0.9
        self.high, self.low, self.low_share = 0.0, 0.0, 0.0
        self._turn = 0.0

    def mix(self, shares: Values, worths: Values) -> None:
        """Take in the models' shares of the requests, and what a point of accuracy is worth to each.

        A model whose accuracy is worth twice as much takes at a price what another takes at half of it.
        """
        self.scale = max(1.0, float(worths.max()))
        curves = [
            demand if worth == self.scale else np.interp(PRICES * (self.scale / worth), PRICES, demand)
            for demand, worth in zip(self._demands, worths, strict=True)
        ]
        self._demand = shares @ np.array(curves)

    def update(self, *, rate_per_s: float, capacity_per_s: float, error: float, passed_s: float) -> None:
        """Take the load and the backlog's relative error from its target into account."""
        binding = self.eta * capacity_per_s < rate_per_s * self._demand[0]
        if error > 0.0 or binding or self.eta < 1.0:
            moved = self.eta * exp(-self._integral_per_s * passed_s * max(-1.0, min(3.0, error)))
            self.eta = max(ETA_RANGE[0], min(ETA_RANGE[1], moved))
        share = self.eta * capacity_per_s / max(rate_per_s, 1e-9)  # networks a request may take
        at = min(int(np.searchsorted(-self._demand, -share)), len(PRICES) - 1)
        under = max(at - 1, 0)
        gap = self._demand[under] - self._demand[at]
        self.high, self.low = self.scale * float(PRICES[at]), self.scale * float(PRICES[under])
        self.low_share = float(min(1.0, max(0.0, (share - self._demand[at]) / gap))) if gap > 0.0 else 0.0

    @property
    def saturated(self) -> bool:
        """Whether even the narrowest network takes more than there is."""
        return self.low_share <= 0.0 and self.high >= self.scale * PRICES[-1]

    @property
    def free(self) -> bool:
        """Whether backlogs stay below their target at any price: then something else holds back."""
        return self.eta >= ETA_RANGE[1]

    def next(self) -> float:
        """The price of the next decision."""
        self._turn += self.low_share
        if self._turn >= 1.0:
            self._turn -= 1.0
            return self.low
        return self.high
