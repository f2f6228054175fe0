"""The goal router: meets stated goals by pricing device time, energy and waiting, and following the prices.

Every choice of (width, server) for the head is scored at once; T is the backlog to aim for:

    score(w, i) = −A_i(w) + c_i · work_i(w) + (ω · own_i(w) + θ · move_i) / T
    c_i = g · s_i · e_i · (1 + 3 · e_i / T)

A_i(w) is the advantage of a width under the cost to go (`cost_to_go.py`): accuracy still to be had, less
device time at the planner's price π (`pricing.py`), less the objective at its price ε. c_i is the queue's own
price for a server that has e_i seconds more work than T; s_i is how slow it is. own_i is the head's own time
on it: the backlog, then this and all later segments; move_i that of its inputs over the network. What a busy
server would have to load first is not asked for (`warmth.py`). π follows the load, ε the accuracy floor, T
the limit on the 99th percentile, which is about a fixed time plus one backlog a segment. Where all segments
are planned at once, `network_plan.py` takes the place of the score, and latency is that of the answers.
"""

from collections.abc import Sequence
from math import exp, inf

import numpy as np
from msgspec import Struct

from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.routing.cost_to_go import ROW, CostToGo, Values
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.goal_meter import GoalMeter
from slimsched.serving.routing.network_plan import DEAREST, NetworkPlan
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.pricing import Pricing
from slimsched.serving.routing.rate import Rate
from slimsched.serving.routing.router import Route
from slimsched.serving.routing.warmth import Warmth

OBJECTIVE_PRICES = np.geomspace(1e-4, 4.0, 64)
TARGET_LEAST_S, TARGET_LIMIT_S = 0.002, 0.1
"""Least backlog to aim for, and the most that an accuracy floor alone can ask for."""

CHASE_PER_S = 3.0
"""Pace at which the objective's price, and the target where there is no limit, follow the accuracy floor."""

RISE_PER_S, FALL_PER_S = 0.2, 0.6
"""Pace at which the target takes up what latency leaves below its limit, and gives back what is above."""

AIM = 0.97
"""Share of the limit that is aimed for."""

START = 0.18
"""Share of what the limit leaves beside the latency of an empty cluster that the first target takes."""

FLOOR_SCALE = 0.005
"""Distance from the accuracy floor at which they move at full pace."""

PLANNED_ERROR = 1.0
"""Most that a backlog above its target counts where plans are final: a burst is no lack of capacity."""

STEEPER = 3.0
"""How much a backlog of twice the target is dearer than in proportion: bursts must be met at once."""


class GoalParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set by hand; `slim router train goal` searches for better ones. Prices are in accuracy."""

    crowd_per_s: float = 5.5  # g: price of a second of backlog above the target, a network
    wait: float = 0.0144  # ω: price of the head's own waiting and running, a target's length of it
    move: float = 0.05  # θ: price of moving, likewise; it loads the links as well
    target_s: float = 0.012  # T: backlog to aim for when no limit on latency is stated; set by hand
    integral_per_s: float = 3.0  # pace of η
    cold: float = 10.0  # price of what a busy server would have to load first; set by hand
    in_time: float = 0.0  # where networks are planned: share of deadlines that is the limit if none is stated
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
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        if self.goal.p99_s:
            self._aim(START * (self.goal.p99_s - self._estimate.empty_s), self.goal.p99_s / SEGMENTS)
        self._full_s = np.sum([cluster.work_s[key] for key in _whole()], axis=0)
        """Device time of the whole network at full width, by server."""
        self._crowd = self.learned.crowd_per_s * self._full_s * (1.0 / self._full_s).mean()
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
        self._warmth = Warmth(len(cluster))
        self._network_plan = NetworkPlan(self._estimate, self.cost_to_go, self._kind_of, self._full_s)
        self._plans = False
        self._rate = Rate()
        self._now_s = -1.0

    def route(self, seen: Observation) -> Route:
        """Score every (width, server) and take the cheapest; a stated width goes where it is done soonest."""
        if seen.now_s != self._now_s:
            self._tick(seen)
        if seen.asked:
            return self._network_plan.soonest(seen)
        if seen.plans:
            return self._plan(seen)
        learned, head = self.learned, (seen.segment, seen.previous)
        work, count = self._work[head], min(seen.count, self._estimate.group)
        price = self._price()
        floor = seen.min_accuracy
        value, rest = self.cost_to_go.at(price, self.objective_price, floor)
        row = ROW[seen.widths]
        child = 4 * row + 1
        advantage = (value[child : child + 4] - value[row])[:, self._kind_of] - price * work
        if self.objective_price:
            advantage -= self.objective_price * self._objective[head]
        onward = work + rest[child : child + 4][:, self._kind_of]
        own_s = seen.backlog_s + count * self._full_s * onward
        own = (learned.wait * own_s + learned.move * self._estimate.move_s(seen)) / self.target_s
        score = self._crowd_price(seen) * work + own - advantage
        if learned.cold and not self.pricing.free:
            score += learned.cold * self._warmth.cold(seen)
        width, server = divmod(int(score.argmin()), len(self._cluster))
        due = self._warmth.due(seen.segment, server, seen.now_s) if learned.cold else None
        if due is not None and due > width:
            self._warmth.ask(seen.segment, server, due, seen.now_s)
            return Route(server, WIDTHS[due], 1, "kept warm")
        self._warmth.ask(seen.segment, server, width, seen.now_s)
        if seen.segment >= SEGMENTS - 2:
            accuracy = self._cluster.accuracy.best_reachable((*seen.widths, WIDTHS[width]))
            youngest_s = seen.arrival_s + count / max(seen.arrival_rate_per_s, 1.0)
            self.meter.note(seen.segment, max(0.0, seen.now_s - youngest_s), count, accuracy)
        return Route(server, WIDTHS[width], self._estimate.group, "least price")

    def _plan(self, seen: Observation) -> Route:
        """Plan all segments still to come at once."""
        plan = self._network_plan
        crowd = plan.crowd(seen.backlog_s) if plan.limit_s else self._crowd_price(seen)
        own_per_s = self.learned.wait / (plan.limit_s or self.target_s)
        return plan.cheapest(seen, self._price(), self.objective_price, crowd, own_per_s)

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """Where networks are planned as a whole nothing else tells how long requests take."""
        if not self._plans:
            return
        for request, count in alike(requests):
            accuracy, latency_s = self._cluster.accuracy.accuracy(request.widths), now_s - request.arrival_s
            for segment in (SEGMENTS - 2, SEGMENTS - 1):
                self.meter.note(segment, latency_s, count, accuracy)

    def with_goal(self, goal: Goal) -> "GoalRouter":
        """A router with the same gains and another goal."""
        return GoalRouter(self._cluster, goal, self.learned)

    def _price(self) -> float:
        """What the planner asks for a network of device time, in the next decision."""
        return max(0.0, self.learned.planner * self.pricing.next() - self.objective_price)

    def _crowd_price(self, seen: Observation) -> Values:
        """What each server's queue adds to it."""
        excess = np.maximum(seen.backlog_s / self.target_s - 1.0, 0.0)
        price: Values = self._crowd * self.target_s * excess * (1.0 + STEEPER * excess)
        return np.minimum(price, DEAREST)

    def _tick(self, seen: Observation) -> None:
        """Once a scheduling step: move the prices."""
        passed_s = 0.0 if self._now_s < 0.0 else seen.now_s - self._now_s
        self._now_s, self._plans = seen.now_s, seen.plans
        self.meter.fade(passed_s)
        if seen.plans and self.learned.in_time and not self.goal.p99_s:
            limit_s = self.learned.in_time * (seen.deadline_s - seen.arrival_s)
            self.target_s = self._network_plan.heed(limit_s, passed_s) or self.target_s
        self._chase(passed_s)
        if not seen.alive.all():
            self._warmth.forget(~seen.alive)
        networks_per_s = np.where(seen.alive, 1.0 / self._full_s, 0.0)
        capacity_per_s = float(networks_per_s.sum())
        backlog_s = float(seen.backlog_s @ networks_per_s) / capacity_per_s
        self.pricing.update(
            rate_per_s=self._rate.after(seen.arrival_rate_per_s, passed_s),
            capacity_per_s=capacity_per_s,
            error=min(backlog_s / self.target_s - 1.0, PLANNED_ERROR if seen.plans else inf),
            passed_s=passed_s,
        )

    def _chase(self, passed_s: float) -> None:
        """Move the backlog target towards the limit on latency, the objective's price towards the floor."""
        goal, meter = self.goal, self.meter
        p99_s = meter.p99_s if goal.p99_s else None
        if p99_s is not None:
            room_s = max(-goal.p99_s, AIM * goal.p99_s - p99_s)
            pace = RISE_PER_S if room_s > 0.0 else FALL_PER_S
            self._aim(self.target_s + passed_s * pace * room_s / SEGMENTS, goal.p99_s / SEGMENTS)
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
