"""Following a goal while requests are served: meters of how well it is met, and the prices that follow.

The goal of one model while it is served: how well it is met, and which prices follow from that.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.gateway.goal import Goal, LatencyLimit
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.gateway.prices import CostToGo

# -- The goal meter: a router's own estimate of its mean accuracy and its latency while it routes.
#
# When a request is routed to its last segment, its whole plan and its age are known. The last segment is
# expected to take as long as the time between the last two routings.

WINDOW_S = 2.0
"""Time over which means are taken; older figures fade."""

LONGEST_STEP_S = 10.0
"""A longer silence counts as this long: everything has settled by then, and exponents stay finite."""

TAIL_WINDOW_S = 1.0
"""The p99 covers this window and the one before, so that old latencies are soon forgotten."""

QUANTILES = {"p99": 0.99, "p95": 0.95}
LEAST_S, STEP = 1e-3, 0.02
AGES_S = LEAST_S * np.exp(STEP * np.arange(600))
"""Ages are counted in steps of 2 %, from 1 ms to 160 s."""


class GoalMeter:
    """Fading means, and a histogram of ages, of the requests sent into the last two segments."""

    def __init__(self) -> None:
        self._accuracy = 0.0
        self._age_s = [0.0, 0.0]  # sum of ages when routed to the last segment but one, and to the last
        self._weight = [0.0, 0.0]
        self._ages = np.zeros((2, len(AGES_S)))  # this window and the one before
        self._window_s = 0.0

    @property
    def accuracy(self) -> float | None:
        """Expected mean accuracy of the requests sent into their last segment."""
        return self._accuracy / self._weight[1] if self._weight[1] else None

    @property
    def p99_s(self) -> float | None:
        """99th percentile of latency."""
        return self.latency_s("p99")

    def latency_s(self, figure: str) -> float | None:
        """Return a figure of latency: p99, p95 or mean; None while nothing is known."""
        if not self._weight[1] or not self._weight[0] or not self._age_s[1]:
            return None
        before, last = (age / weight for age, weight in zip(self._age_s, self._weight, strict=True))
        rest = max(1.0, 2.0 - before / last)
        if figure == "mean":
            return last * rest
        below = self._ages.sum(axis=0).cumsum()
        place = int(np.searchsorted(below, QUANTILES[figure] * below[-1]))
        return float(AGES_S[min(place, len(AGES_S) - 1)]) * rest

    def note(self, age_s: float, count: int, accuracy: float, *, last: bool) -> None:
        """Note a block sent to one of the last two segments; accuracy only counts for the last."""
        which = int(last)
        self._weight[which] += count
        self._age_s[which] += count * age_s
        if which:
            self._accuracy += count * accuracy
            step = int(log(max(age_s, LEAST_S) / LEAST_S) / STEP)
            self._ages[0, min(step, len(AGES_S) - 1)] += count

    def fade(self, passed_s: float) -> None:
        """Let time pass."""
        kept = exp(-passed_s / WINDOW_S)
        self._accuracy *= kept
        self._weight = [kept * weight for weight in self._weight]
        self._age_s = [kept * age_s for age_s in self._age_s]
        self._window_s += passed_s
        if self._window_s >= TAIL_WINDOW_S and self._ages[0].any():
            self._window_s = 0.0
            self._ages[1], self._ages[0] = self._ages[0], 0.0


# -- Worth: how much waiting a unit of accuracy is worth, so that a stated goal is met.
#
# A learned policy takes `v`, the worth of accuracy in seconds, as an input. A goal states limits instead, and
# v
# follows them while requests are served. A limit on latency lowers v while latency is above it and raises v
# while there is room. Without such a limit, v follows the accuracy floor.

RANGE_S = (0.1, 40.0)
"""The range of v: twice as far in both directions as in training."""

V_AIM = 0.95
"""Share of the latency limit to aim for."""

V_RISE_PER_S, V_FALL_PER_S, V_CHASE_PER_S = 1.0, 4.0, 1.5
"""How fast v rises and falls with the room below a latency limit, and follows an accuracy floor."""

FLOOR_SCALE = 0.005
"""Distance from the accuracy floor at which v moves at full pace."""


class Worth:
    """Holds v for one cluster and moves it towards the goal of its first model."""

    def __init__(self, cluster: Cluster, v: float, goal: Goal | None) -> None:
        model = (cluster.active or cluster.models)[0]
        self.v = v
        self.goal = goal or Goal()
        self._limits = self.goal.of(model.name)
        self._models = cluster.models
        self._meter = GoalMeter()
        self._now_s = -1.0

    @property
    def is_stated(self) -> bool:
        """Whether v has anything to follow."""
        return bool(self._limits.latency_limits or self._limits.min_accuracy)

    def update(self, now_s: float) -> None:
        """Let time pass, and move v."""
        passed_s = 0.0 if self._now_s < 0.0 else min(LONGEST_STEP_S, now_s - self._now_s)
        self._now_s = now_s
        self._meter.fade(passed_s)
        limits, accuracy = self._limits, self._meter.accuracy
        rooms = [
            V_AIM - figure_s / limit.limit_s
            for limit in limits.latency_limits
            if (figure_s := self._meter.latency_s(limit.figure)) is not None
        ]
        if rooms:
            room = max(-1.0, min(1.0, min(rooms)))
            self._move(passed_s * room * (V_RISE_PER_S if room > 0.0 else V_FALL_PER_S))
        if limits.min_accuracy and accuracy is not None:
            missing = max(-1.0, min(1.0, (limits.min_accuracy - accuracy) / FLOOR_SCALE))
            if limits.objective != "accuracy" or (missing > 0.0 and not limits.latency_limits):
                self._move(V_CHASE_PER_S * passed_s * missing)

    def sent(self, seen: Observation, choice: int, count: int) -> None:
        """Note that a block is sent to one of its last two segments: its age tells its latency."""
        model = self._models[seen.model]
        last = seen.segment - (model.segments - 1)
        if last < -1:
            return
        youngest_s = seen.arrival_s + count / max(seen.arrival_rate_per_s, 1.0)
        accuracy = model.quality.best_reachable((*seen.path, choice))
        self._meter.note(max(0.0, seen.now_s - youngest_s), count, accuracy, last=last == 0)

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """Note answers, where whole networks are planned and ages on the way say nothing."""
        for request, count in alike(requests):
            accuracy = self._models[request.model].quality.accuracy(request.path)
            for last in (False, True):
                self._meter.note(now_s - request.arrival_s, count, accuracy, last=last)

    def _move(self, by: float) -> None:
        self.v = max(RANGE_S[0], min(RANGE_S[1], self.v * exp(by)))


# -- The price of energy that keeps energy per answer, and power, below the limits that a goal states.
#
# The gateway knows what every batch drew and how many requests it answered. The price rises while one of the
# two is above its limit, and falls while both are below. Without a limit it stays 0.

ENERGY_PRICES = np.geomspace(1e-4, 4.0, 64)
"""Prices of the energy of one widest plan, in accuracy. They come in steps: each makes tables of its own."""

ENERGY_AIM = 0.97
"""Share of a limit to aim for."""

SCALE = 0.05
"""Distance from that share, relative to the limit, at which the price moves at full pace."""

ENERGY_CHASE_PER_S = 2.5
LEAST_PER_S = 1e-6
"""Below this rate of answers nothing is known about energy per answer."""

SLACK = 1.03
"""A limit counts as yielding while the figure is above this multiple of it."""


class EnergyLimit:
    """Follows energy per answer and power, and sets the price."""

    def __init__(self, goal: Goal, idle_w: float) -> None:
        self._limits = [
            (limit, clause)
            for limit, clause in (
                (goal.energy_j, f"energy<={1e3 * goal.energy_j:g}mJ"),
                (goal.power_w, f"power<={goal.power_w:g}W"),
            )
            if limit
        ]
        self._is_energy = [clause.startswith("energy") for _, clause in self._limits]
        self._idle_w = idle_w
        self._sought = float(ENERGY_PRICES[0])
        self.price = 0.0
        self.binding = ""
        """The limit that sets the price now."""
        self.yielding: Sequence[str] = ()
        """The limits that are not kept now."""

    def update(self, active_w: float, answered_per_s: float, passed_s: float) -> None:
        """Move the price, given the power above idle and the rate of answers."""
        if not self._limits or answered_per_s < LEAST_PER_S:
            return
        energy_j = active_w / answered_per_s
        figures = [energy_j if is_energy else active_w + self._idle_w for is_energy in self._is_energy]
        shares = [figure / limit for figure, (limit, _) in zip(figures, self._limits, strict=True)]
        most = max(shares)
        over = max(-1.0, min(1.0, (most - ENERGY_AIM) / SCALE))
        low, high = float(ENERGY_PRICES[0]), float(ENERGY_PRICES[-1])
        self._sought = max(low, min(high, self._sought * exp(ENERGY_CHASE_PER_S * passed_s * over)))
        nearest = int(np.abs(np.log(ENERGY_PRICES / self._sought)).argmin())
        self.price = float(ENERGY_PRICES[nearest]) if nearest else 0.0
        self.binding = self._limits[shares.index(most)][1] if self.price else ""
        self.yielding = [
            clause for share, (_, clause) in zip(shares, self._limits, strict=True) if share > SLACK
        ]


OBJECTIVE_PRICES = ENERGY_PRICES
TARGET_LEAST_S, TARGET_LIMIT_S = 0.002, 0.1
"""Least backlog to aim for, and the longest that an accuracy floor alone can lead to."""

CHASE_PER_S = 3.0
"""How fast the objective's price, and the target if latency has no limit, follow the accuracy floor."""

RISE_PER_S, FALL_PER_S = 0.2, 0.6
"""How fast the target rises while latency is below its limit, and falls while it is above."""

AIM = 0.97
"""Share of the latency limit to aim for."""

START = 0.18
"""The first target, as a share of the latency limit minus the latency of an empty cluster."""


BOOST_PER_S, MOST_BOOST, BOOST_STEP = 1.0, 8.0, 2**0.25
"""Pace at which a model below its floor gains worth beside other models, the most it can gain, its steps."""


YIELDS = 1.05
"""A limit on latency counts as yielding while the figure is above this multiple of it."""

BINDS = 0.2
"""A limit on latency decides when less room than this share of it is left."""

SHORT_BOOST = 2.0
"""Boost from which on a model counts as short of its floor."""


class ModelGoal:
    """The goal of one model, a meter of how well it is met, and the prices that follow it.

    With several models, a model below its accuracy floor gains worth until it is back above. If not all goals
    can be met, they give way in proportion to the models' weights.
    """

    def __init__(
        self,
        model: ServedModel,
        goal: Goal,
        cost_to_go: CostToGo,
        *,
        target_s: float,
        empty_s: float,
        competes: bool,
    ) -> None:
        self.model, self.goal, self.cost_to_go = model, goal, cost_to_go
        self.meter = GoalMeter()
        self.target_s = target_s
        self._sought = 0.02
        self._floor_price = 0.0 if goal.objective == "accuracy" else self._sought
        self.objective_price = self._floor_price
        """The price of the objective: what the accuracy floor leaves, or what a limit on energy asks for."""
        self._competes = competes
        self._boost = 1.0
        self.worth = 1.0
        """What a point of this model's accuracy counts beside the other models."""
        lengths = {len(plan) for plan in model.tree.plans}
        self._segments = model.segments
        judged = cost_to_go.escalation is not None
        self._foretells = lengths == {model.segments} and model.segments > 1 and not judged
        """Whether the age at the last two segments tells the latency of a request."""
        self._limits = goal.latency_limits
        self.binding = ""
        """The limit that decides now; empty if none does."""
        self.yielding: Sequence[str] = ()
        """The limits that are not kept now."""
        if self._limits:
            least_s = min(limit.limit_s for limit in self._limits)
            self._aim(START * (least_s - empty_s), least_s / self._segments)

    @property
    def boost(self) -> float:
        """What the model gained because it is below its floor, in steps: each makes tables of its own."""
        return float(BOOST_STEP ** round(log(self._boost, BOOST_STEP)))

    @property
    def is_short(self) -> bool:
        """Whether the model has been below its floor for a while: then it may ask for what must be loaded."""
        return self._boost >= SHORT_BOOST

    def note(self, seen: Observation, choice: int, count: int) -> None:
        """Note that a block of the head is sent at a choice."""
        if not self._foretells or seen.segment < self._segments - 2:
            return
        accuracy = self.model.quality.best_reachable((*seen.path, choice))
        youngest_s = seen.arrival_s + count / max(seen.arrival_rate_per_s, 1.0)
        age_s = max(0.0, seen.now_s - youngest_s)
        self.meter.note(age_s, count, accuracy, last=seen.segment == self._segments - 1)

    def answered(self, request: Request, count: int, now_s: float, *, planned: bool) -> None:
        """Note answers, for models whose ages on the way do not tell the latency."""
        if self._foretells and not planned:
            return
        accuracy, latency_s = (
            self.model.expected_accuracy(request.path, request.trail),
            now_s - request.arrival_s,
        )
        for last in (False, True):
            self.meter.note(latency_s, count, accuracy, last=last)

    def chase(self, passed_s: float) -> None:
        """Move the backlog target towards the latency limit, and the objective's price towards the floor."""
        goal, meter = self.goal, self.meter
        self.binding, self.objective_price = "", self._floor_price
        if not self._limits and not goal.min_accuracy:
            return
        yielding: list[str] = []
        if self._limits:
            self._keep_latency(passed_s, yielding)
        if goal.min_accuracy and meter.accuracy is not None:
            self._keep_accuracy(passed_s, meter.accuracy, yielding)
        self.yielding = yielding

    def pay_for_energy(self, price: float, binding: str) -> None:
        """Raise the objective's price to what a limit on energy or power asks for; it decides then."""
        if price > self.objective_price:
            self.objective_price, self.binding = price, binding

    def _keep_latency(self, passed_s: float, yielding: list[str]) -> None:
        """Move the backlog target by the limit that leaves the least room."""
        tightest: tuple[float, LatencyLimit] | None = None
        for limit in self._limits:
            figure_s = self.meter.latency_s(limit.figure)
            if figure_s is None:
                continue
            room = max(-1.0, AIM - figure_s / limit.limit_s)
            if tightest is None or room < tightest[0]:
                tightest = room, limit
            if figure_s > YIELDS * limit.limit_s:
                yielding.append(limit.text)
        if tightest is None:
            return
        room, limit = tightest
        pace = RISE_PER_S if room > 0.0 else FALL_PER_S
        target_s = self.target_s + passed_s * pace * room * limit.limit_s / self._segments
        self._aim(target_s, limit.limit_s / self._segments)
        if room < BINDS:
            self.binding = limit.text

    def _keep_accuracy(self, passed_s: float, accuracy: float, yielding: list[str]) -> None:
        """Move the objective's price, or what the model is worth, towards the accuracy floor."""
        goal = self.goal
        if accuracy < goal.min_accuracy - FLOOR_SCALE:
            yielding.insert(0, f"accuracy>={100 * goal.min_accuracy:g}")
        if goal.objective != "accuracy" and not self.binding:
            self.binding = f"accuracy>={100 * goal.min_accuracy:g}"
        missing = max(-1.0, min(1.0, (goal.min_accuracy - accuracy) / FLOOR_SCALE))
        if self._competes:
            grown = self._boost * exp(BOOST_PER_S * passed_s * missing)
            self._boost = max(1.0, min(MOST_BOOST, grown))
        if goal.objective != "accuracy":
            low, high = OBJECTIVE_PRICES[0], OBJECTIVE_PRICES[-1]
            self._sought = float(max(low, min(high, self._sought * exp(-CHASE_PER_S * passed_s * missing))))
            nearest = int(np.abs(np.log(OBJECTIVE_PRICES / self._sought)).argmin())
            self.objective_price = self._floor_price = float(OBJECTIVE_PRICES[nearest])
        elif missing > 0.0 and not self._limits:
            self._aim(self.target_s * exp(CHASE_PER_S * passed_s * missing), TARGET_LIMIT_S)

    def _aim(self, target_s: float, limit_s: float) -> None:
        self.target_s = max(TARGET_LEAST_S, min(limit_s, target_s))


def share_out(models: Sequence[ModelGoal]) -> None:
    """Set what a point of each model's accuracy is worth: its weight and its boost, over the least of each.

    Where all models are below their floors all boosts are alike, and the weights alone decide.
    """
    least, least_boost = min(one.model.weight for one in models), min(one.boost for one in models)
    for one in models:
        one.worth = (one.model.weight / least) * (one.boost / least_boost)
