"""The price of device time: from the fluid programme for the current load, corrected by the backlog.

The plan: the unit of device time is one widest plan. At price π a request takes demand(π) units, and the
cluster has capacity = Σ_i 1 / full_i units per second, so the price satisfies
λ · (demand(π) + fixed) = η · capacity, where `fixed` is a request's share of what batches cost by themselves.
Demand is a staircase. Between two steps both prices are used in turn, in the proportion that meets the load.

The feedback: η is the share of the capacity that is available. It falls while the mean backlog is above its
target and rises while it is below.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.routing.cost_to_go import CostToGo

Values = NDArray[np.float64]

PRICES = np.concatenate([[0.0], np.geomspace(1e-3, 2.0, 60)])
_STEPS: list[float] = PRICES.tolist()
ETA_RANGE = (0.2, 2.0)


def step_above(price: float) -> float:
    """Return the first price of the table, but 0, that is not below this one; the last one if all are."""
    return _STEPS[max(1, bisect_left(_STEPS, price, hi=len(_STEPS) - 1))]


class Pricing:
    """Two neighbouring prices and the share of decisions that take the lower one."""

    def __init__(
        self, costs_to_go: Sequence[CostToGo], capacity_by_kind: Values, *, integral_per_s: float
    ) -> None:
        self._by_kind = capacity_by_kind / capacity_by_kind.sum()
        self._demands = np.zeros((len(costs_to_go), len(PRICES)))  # (models, prices): work per request
        for number, one in enumerate(costs_to_go):
            self.demand_of(number, one)
        self._demand = self._demands[0]
        self.scale = 1.0
        """What the accuracy of the most worthy model is worth: prices must reach that much further."""
        self._integral_per_s = integral_per_s
        self.eta = 0.9
        self.high, self.low, self.low_share = 0.0, 0.0, 0.0
        self._turn = 0.0

    def demand_of(self, model: int, cost_to_go: CostToGo) -> None:
        """Find out how much work a request of a model takes at each price."""
        demand = [float(cost_to_go.at(float(price), 0.0, 0.0)[1][0] @ self._by_kind) for price in PRICES]
        self._demands[model] = np.minimum.accumulate(demand)  # ties between plans may take more at a price

    def mix(self, shares: Values, worths: Values) -> None:
        """Set the models' shares of the requests, and what a point of accuracy is worth in each.

        A model whose accuracy is worth twice as much acts at a price as another does at half that price.
        """
        self.scale = max(1.0, float(worths.max()))
        curves = [
            demand if worth == self.scale else np.interp(PRICES * (self.scale / worth), PRICES, demand)
            for demand, worth in zip(self._demands, worths, strict=True)
        ]
        self._demand = shares @ np.array(curves)

    def update(
        self, *, rate_per_s: float, capacity_per_s: float, error: float, passed_s: float, fixed: float = 0.0
    ) -> None:
        """Set the prices for the current load; `error` is the backlog's relative distance from its target.

        `fixed` is work that each request takes at any price: its share of what batches cost by themselves.
        """
        binding = self.eta * capacity_per_s < rate_per_s * (self._demand[0] + fixed)
        if error > 0.0 or binding or self.eta < 1.0:
            moved = self.eta * exp(-self._integral_per_s * passed_s * max(-1.0, min(3.0, error)))
            self.eta = max(ETA_RANGE[0], min(ETA_RANGE[1], moved))
        each = self.eta * capacity_per_s / max(rate_per_s, 1e-9)  # device time per request, in widest plans
        share = max(0.0, each - fixed)
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
        """Whether backlogs stay below their target at any price, because something else limits the load."""
        return self.eta >= ETA_RANGE[1]

    def next(self) -> float:
        """Return the price for the next decision."""
        self._turn += self.low_share
        if self._turn >= 1.0:
            self._turn -= 1.0
            return self.low
        return self.high
