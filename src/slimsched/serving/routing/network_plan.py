"""Plans for all segments still to come at once, on one server, where every width is loaded.

A width that senders state goes where it is done soonest. Otherwise each server i has the cost to go J_i at
its own price, the planner's π plus what its queue adds, and the head goes where J_i less its own time is
best, at the widths that J_i gives. Where deadlines set the limit L, queues aim for a third of it, and what
they add rises from there with the square of the backlog to the dearest price at L.
"""

from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.key import KEYS, onward
from slimsched.serving.routing.cost_to_go import ROW, CostToGo, Values
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.pricing import PRICES
from slimsched.serving.routing.router import Route

LEAST_GROUP = 16
"""Requests of a stated width go out in equal shares to all servers, but in no smaller groups than this."""

NO_LIMIT_S = 60.0
"""A deadline further away than this asks for nothing."""

LOOSEN_S = 2.0
"""Time after which a deadline longer than those before it counts; a shorter one counts at once."""

TARGET = 1 / 3
"""Share of the limit that backlogs aim for."""

DEAREST = 2.0
"""Price of a crowded server beyond which nothing narrows any more; more would only make blocks wander."""


class NetworkPlan:
    """Knows how long whole networks take where, and the limit that deadlines set, if they do."""

    def __init__(
        self, estimate: Estimate, cost_to_go: CostToGo, kind_of: NDArray[np.int64], full_s: Values
    ) -> None:
        self.limit_s = 0.0
        self._estimate, self._cost_to_go = estimate, cost_to_go
        self._kind_of, self._full_s = kind_of, full_s
        self._stated_s = lru_cache(maxsize=None)(self._stated)

    def soonest(self, seen: Observation) -> Route:
        """The server where the head would be done first at the width its sender stated."""
        share = max(LEAST_GROUP, -(-seen.count // len(seen.alive_ids)))
        group = min(share, self._estimate.group)
        done_s = self._estimate.wait_s(seen) + group * self._stated_s(seen.segment, seen.previous, seen.asked)
        return Route(int(done_s.argmin()), seen.asked, group, "stated width, done first")

    def cheapest(
        self, seen: Observation, price: float, objective_price: float, crowd: Values, own_per_s: float
    ) -> Route:
        """The server and the widths that cost least, a second of the head's own time costing `own_per_s`."""
        count, floor, row = min(seen.count, self._estimate.group), seen.min_accuracy, ROW[seen.widths]
        prices = PRICES[np.searchsorted(PRICES[:-1], price + crowd)]
        wait_s, best = self._estimate.wait_s(seen), (inf, 0)
        for server in seen.alive_ids:
            kind = self._kind_of[server]
            value, rest = self._cost_to_go.at(float(prices[server]), objective_price, floor)
            own_s = wait_s[server] + count * self._full_s[server] * rest[row, kind]
            best = min(best, (own_per_s * own_s - value[row, kind], server))
        server = best[1]
        at = (int(self._kind_of[server]), float(prices[server]), objective_price, floor)
        width, *ahead = self._cost_to_go.course(seen.widths, *at)
        return Route(server, width, self._estimate.group, "least price of a whole plan", tuple(ahead))

    def heed(self, limit_s: float, passed_s: float) -> float:
        """Take the head's limit over, at once if it is shorter, else by and by; the backlog to aim for."""
        if limit_s <= NO_LIMIT_S:
            share = min(1.0, passed_s / LOOSEN_S) if limit_s > self.limit_s > 0.0 else 1.0
            self.limit_s += share * (limit_s - self.limit_s)
        return TARGET * self.limit_s

    def crowd(self, backlog_s: Values) -> Values:
        """What queues add to the price under the limit."""
        target_s = TARGET * self.limit_s
        share = np.clip((backlog_s - target_s) / (self.limit_s - target_s), 0.0, 1.0)
        return DEAREST * share * share

    def _stated(self, segment: int, previous: float | None, width: float) -> Values:
        """Device time of this and all later segments at one width, by server."""
        key = onward(KEYS[segment, width, previous], (width,) * (SEGMENTS - 1 - segment))
        total: Values = np.sum([self._estimate.cluster.work_s[leg] for leg in key.legs], axis=0)
        return total
