"""The goal router: meets stated goals by pricing device time, energy and waiting, and following the prices.

Every choice of (width, server) for the head is scored at once:

    score(w, i) = −A_i(w) + g · [backlog_i − target]₊ · work_i(w) + ω · (backlog_i + run_i(w)) + θ · move_i

A_i(w) is the advantage of a width under the cost to go (`cost_to_go.py`): accuracy still to be had, less
device time at the planner's price π (`pricing.py`), less the objective at its price ε. The second term is the
queue's own price for a server that has more work than it should, the third is the head's own waiting and
running, the fourth its move over the network. π follows the load, ε the accuracy floor, the target the limit
on the 99th percentile; g, ω, θ and the pace of the rest are learned (`slim router train goal`).
"""

from math import exp

import numpy as np
from msgspec import Struct

from slimsched.domain.cluster import Cluster
from slimsched.domain.key import KEYS, Key
from slimsched.domain.width import SEGMENTS, WIDTHS
from slimsched.routing.cost_to_go import ROW, CostToGo
from slimsched.routing.estimate import Estimate
from slimsched.routing.goal import Goal
from slimsched.routing.goal_meter import GoalMeter
from slimsched.routing.observation import Observation
from slimsched.routing.pricing import Pricing
from slimsched.routing.router import Route

OBJECTIVE_PRICES = np.geomspace(1e-4, 4.0, 64)
TARGET_LEAST_S, TARGET_LIMIT_S = 0.002, 0.1
"""Least backlog to aim for, and the most that an accuracy floor alone can ask for."""

CHASE_PER_S = 3.0
"""Pace at which the target and the objective's price follow the goal."""

FLOOR_SCALE = 0.005
"""Distance from the accuracy floor at which they move at full pace."""

WARM_UP_S = 0.02
"""The mean rate over a second is not trusted before it had this long to form."""


class GoalParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What training sets; accuracy is the currency, so gains are accuracy a second."""

    gain_per_s: float = 4.0  # g: price of a second of backlog above the target, a network
    wait_per_s: float = 1.0  # ω: price of a second of the head's own waiting and running
    move_per_s: float = 1.5  # θ: price of a second of moving, which loads the links as well
    target_s: float = 0.012  # backlog to aim for when no limit on latency is stated; set by hand
    integral_per_s: float = 3.0  # pace of η
    ahead: float = 0.0  # share of the later segments' work that a crowded server is charged for at once
    dead: float = 1.0  # share of the target below which backlog has no price; set by hand
    planner: float = 1.0  # share of the planner's price that is used; 0 leaves the queue's own price


class GoalRouter:
    """Prices in, one argmin out; the number of servers is free."""

    def __init__(
        self, cluster: Cluster, goal: Goal | None = None, learned: GoalParameters | None = None
    ) -> None:
        self.goal = goal or Goal()
        self.learned = learned or GoalParameters()
        self.meter = GoalMeter()
        self.target_s = self.learned.target_s
        self._sought = 0.02
        self.objective_price = 0.0 if self.goal.objective == "accuracy" else self._sought
        if self.goal.p99_s:
            self.target_s = max(TARGET_LEAST_S, 0.1 * self.goal.p99_s)
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._full_s = np.sum([cluster.work_s[key] for key in _whole()], axis=0)
        """Device time of the whole network at full width, by server."""
        kinds = {
            id(profile): number
            for number, profile in enumerate({id(p): p for p in cluster.profiles}.values())
        }
        self._kind_of = np.array([kinds[id(profile)] for profile in cluster.profiles])
        first = [int(np.flatnonzero(self._kind_of == kind)[0]) for kind in range(len(kinds))]
        work = [
            {key: float(cluster.work_s[key][i] / self._full_s[i]) for key in KEYS.values()} for i in first
        ]
        objective = _objective(cluster, self.goal, first, self._full_s)
        self.cost_to_go = CostToGo(cluster.accuracy, work, objective)
        capacity = np.bincount(self._kind_of, 1.0 / self._full_s).astype(np.float64)
        self.pricing = Pricing(self.cost_to_go, capacity, integral_per_s=self.learned.integral_per_s)
        self._work = _by_head(work, self._kind_of)
        self._objective = _by_head(objective, self._kind_of)
        self._began_s: float | None = None
        self._now_s = -1.0

    def route(self, seen: Observation) -> Route:
        """Score every (width, server) and take the cheapest."""
        if seen.now_s != self._now_s:
            self._tick(seen)
        learned, head = self.learned, (seen.segment, seen.previous)
        work, count = self._work[head], min(seen.count, self._estimate.group)
        price = max(0.0, learned.planner * self.pricing.next() - self.objective_price)
        floor = seen.min_accuracy
        value, rest = self.cost_to_go.at(price, self.objective_price, floor)
        row = ROW[seen.widths]
        child = 4 * row + 1
        advantage = (value[child : child + 4] - value[row])[:, self._kind_of] - price * work
        if self.objective_price:
            advantage -= self.objective_price * self._objective[head]
        crowd = learned.gain_per_s * np.maximum(seen.backlog_s - learned.dead * self.target_s, 0.0)
        taken = (
            work if not learned.ahead else work + learned.ahead * rest[child : child + 4][:, self._kind_of]
        )
        own_s = seen.backlog_s + count * self._full_s * work
        moved = learned.move_per_s * self._estimate.move_s(seen)
        score = crowd * taken + learned.wait_per_s * own_s + moved - advantage
        width, server = divmod(int(score.argmin()), len(self._cluster))
        if seen.segment >= SEGMENTS - 2:
            accuracy = self._cluster.accuracy.best_reachable((*seen.widths, WIDTHS[width]))
            self.meter.note(seen.segment, seen.now_s - seen.arrival_s, seen.now_s, count, accuracy)
        return Route(server, WIDTHS[width], self._estimate.group, "least price")

    def _tick(self, seen: Observation) -> None:
        """Once a scheduling step: move the prices."""
        if self._began_s is None:
            self._began_s = self._now_s = seen.now_s
        passed_s, self._now_s = seen.now_s - self._now_s, seen.now_s
        self._chase(passed_s)
        networks_per_s = np.where(seen.alive, 1.0 / self._full_s, 0.0)
        capacity_per_s = float(networks_per_s.sum())
        backlog_s = float(seen.backlog_s @ networks_per_s) / capacity_per_s
        formed = 1.0 - exp(-max(WARM_UP_S, seen.now_s - self._began_s))  # the rate is an average over 1 s
        self.pricing.update(
            rate_per_s=seen.arrival_rate_per_s / formed,
            capacity_per_s=capacity_per_s,
            error=backlog_s / self.target_s - 1.0,
            passed_s=passed_s,
        )

    def _chase(self, passed_s: float) -> None:
        """Move the backlog target towards the limit on latency, the objective's price towards the floor."""
        goal, meter = self.goal, self.meter
        if goal.p99_s and meter.p99_s is not None:
            room = max(-1.0, min(0.2, 1.0 - meter.p99_s / goal.p99_s))
            self._aim(self.target_s * exp(CHASE_PER_S * passed_s * room), 0.5 * goal.p99_s)
        if not goal.min_accuracy or meter.accuracy is None:
            return
        missing = max(-1.0, min(1.0, (goal.min_accuracy - meter.accuracy) / FLOOR_SCALE))
        if goal.objective != "accuracy":
            low, high = OBJECTIVE_PRICES[0], OBJECTIVE_PRICES[-1]
            self._sought = float(max(low, min(high, self._sought * exp(-CHASE_PER_S * passed_s * missing))))
            nearest = int(np.abs(np.log(OBJECTIVE_PRICES / self._sought)).argmin())
            self.objective_price = float(OBJECTIVE_PRICES[nearest])
        elif missing > 0.0 and not goal.p99_s:
            self._aim(self.target_s * exp(CHASE_PER_S * passed_s * missing), TARGET_LIMIT_S)

    def _aim(self, target_s: float, limit_s: float) -> None:
        self.target_s = max(TARGET_LEAST_S, min(limit_s, target_s))


def _whole() -> list[Key]:
    return [KEYS[segment, 1.0, 1.0 if segment else None] for segment in range(SEGMENTS)]


def _objective(cluster: Cluster, goal: Goal, first: list[int], full_s: np.ndarray) -> list[dict[Key, float]]:
    """What the objective counts for a key on each kind, a full-width network costing 1 on average."""
    if goal.objective == "energy":
        batch = cluster.batch_limit
        raw = [{k: cluster.profiles[i].energy_j(k, batch) / batch for k in KEYS.values()} for i in first]
    else:
        raw = [{key: float(cluster.work_s[key][i]) for key in KEYS.values()} for i in first]
    mean = float(np.mean([sum(one[key] for key in _whole()) for one in raw]))
    return [{key: value / mean for key, value in one.items()} for one in raw]


def _by_head(cost: list[dict[Key, float]], kind_of: np.ndarray) -> dict[tuple[int, float | None], np.ndarray]:
    """(widths, servers) for every (segment, previous width) a head can have."""
    return {
        (segment, previous): np.array([[one[KEYS[segment, w, previous]] for one in cost] for w in WIDTHS])[
            :, kind_of
        ]
        for segment in range(SEGMENTS)
        for previous in (WIDTHS if segment else (None,))
    }
