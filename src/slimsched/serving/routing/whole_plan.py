"""Plans all remaining segments at once, on one server, for clusters where every choice is loaded.

A plan that the sender stated goes to the server that finishes it first. Otherwise each server i has the cost
to go J_i at its own price: the planner's π plus what its queue adds. The head goes to the server with the
best J_i less the price of the head's own time, at the choices that J_i gives. Where deadlines set a limit L,
queues aim for a third of L, or a quarter where answers may be followed by wider plans, because those who go
on wait again. Above that, what they add grows with the square of the excess, up to the highest price at L.
Where the load leaves room for widest plans, a queue is a chance meeting that soon passes: then queues may be
twice as long before they narrow anything.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.request import Why
from slimsched.serving.routing.cost_to_go import CostToGo, Values
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.pricing import PRICES
from slimsched.serving.routing.router import Route

LEAST_GROUP = 16
"""Requests of a stated plan that would run longer than they wait are shared between servers that could begin
before half of them are done, but in no smaller groups than this."""

NO_LIMIT_S = 60.0
"""A deadline further away than this sets no limit."""

LOOSEN_S = 2.0
"""A longer limit takes effect over this time; a shorter one takes effect at once."""

TARGET = 1 / 3
"""The backlog to aim for, as a share of the limit."""

SURE_TARGET = 1 / 4
"""The same where an answer may be followed by that of a wider plan."""

EASY = 2.0
"""How many times as long queues may be at light load."""

LIGHT, HEAVY = 0.6, 0.9
"""Loads, as shares of what the cluster serves with widest plans, between which the target changes."""

DEAREST = 2.0
"""Highest price of a crowded server. A higher one narrows nothing and only moves blocks around."""


class WholePlan:
    """Chooses a server and a whole plan; `limit_s` is the limit that deadlines set, 0 if none."""

    def __init__(
        self,
        estimate: Estimate,
        costs_to_go: Sequence[CostToGo],
        kind_of: NDArray[np.int64],
        full_s: Values,
        *,
        sure: bool = False,
    ) -> None:
        self.limit_s = 0.0
        self.load = 0.0
        """The load, as a share of what the cluster serves with widest plans."""
        self._estimate, self._costs_to_go = estimate, costs_to_go
        self._usual = SURE_TARGET if sure else TARGET
        self._kinds: list[int] = kind_of.tolist()
        self._full_s: list[float] = full_s.tolist()
        self._stated_s = lru_cache(maxsize=None)(self._stated)

    def soonest(self, seen: Observation) -> Route:
        """Return the server that would finish the head's stated plan first."""
        count = min(seen.count, self._estimate.group)
        wait_s, each_s = self._estimate.wait_s(seen), self._stated_s(seen.model, seen.plan, seen.segment)
        server = int((wait_s + count * each_s).argmin())
        own_s = count * float(each_s[server])
        if count > LEAST_GROUP and wait_s[server] < own_s:  # else sharing would gain little
            helpers = int(np.count_nonzero(wait_s < wait_s[server] + own_s / 2))
            count = min(count, max(LEAST_GROUP, -(-seen.count // helpers)))
        plan = self._estimate.cluster.models[seen.model].tree.plans[seen.plan]
        choice, *ahead = plan[seen.segment :]
        return Route(server, choice, count, "stated plan, done first", tuple(ahead))

    def cheapest(
        self,
        seen: Observation,
        price: float,
        objective_price: float,
        crowd: Values,
        own_per_s: float,
        binding: str = "",
    ) -> Route:
        """Return the cheapest server and choices; a second of the head's own time costs `own_per_s`."""
        cost_to_go = self._costs_to_go[seen.model]
        count, floor = min(seen.count, self._estimate.group), seen.min_accuracy
        row = cost_to_go.tree.row[seen.path]
        prices = PRICES[np.searchsorted(PRICES[:-1], price + crowd)].tolist()
        wait_s, best, second, left = self._estimate.wait_s(seen).tolist(), (inf, 0), (inf, -1), 0.0
        for server in seen.alive_ids:
            kind = self._kinds[server]
            value, rest = cost_to_go.at(prices[server], objective_price, floor)
            each = float(rest[row, kind])
            own_s = wait_s[server] + count * self._full_s[server] * each
            cost = own_per_s * own_s - float(value[row, kind])
            if cost < best[0]:
                best, second, left = (cost, server), best, each
            elif cost < second[0]:
                second = cost, server
        server = best[1]
        kind, cost_s = self._kinds[server], left * self._full_s[server]
        choice, *ahead = cost_to_go.course(seen.path, kind, prices[server], objective_price, floor)
        quality = self._estimate.cluster.models[seen.model].quality
        worth = quality.accuracy((*seen.path, choice, *ahead))
        if second[0] < inf:
            other = second[1]
            its = cost_to_go.course(seen.path, self._kinds[other], prices[other], objective_price, floor)
            why = Why(binding, worth, cost_s, other, its[0], second[0] - best[0])
        else:
            why = Why(binding, worth, cost_s)
        return Route(server, choice, self._estimate.group, "least price of a whole plan", tuple(ahead), why)

    def update_target(self, limit_s: float, passed_s: float) -> float:
        """Lower the limit at once, raise it gradually; return the backlog to aim for."""
        if limit_s <= NO_LIMIT_S:
            share = min(1.0, passed_s / LOOSEN_S) if limit_s > self.limit_s > 0.0 else 1.0
            self.limit_s += share * (limit_s - self.limit_s)
        return self._target() * self.limit_s

    def _target(self) -> float:
        """Return the backlog to aim for, as a share of the limit."""
        room = min(1.0, max(0.0, (HEAVY - self.load) / (HEAVY - LIGHT)))
        return self._usual * (1.0 + room * (EASY - 1.0))

    def crowd(self, backlog_s: Values) -> Values:
        """Return what each server's queue adds to the price, given the limit."""
        target_s = self._target() * self.limit_s
        share = np.clip((backlog_s - target_s) / (self.limit_s - target_s), 0.0, 1.0)
        return DEAREST * share * share

    def _stated(self, model: int, plan: int, segment: int) -> Values:
        """Return the device time of this and all later segments of a plan, by server."""
        cluster = self._estimate.cluster
        served = cluster.models[model]
        keys = served.legs(served.tree.plans[plan])[segment:]
        total: Values = np.sum([cluster.work_s[key] for key in keys], axis=0)
        return total
