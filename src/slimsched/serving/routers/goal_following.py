"""Following a goal while requests are served: a meter of how well it is met, and the figures that chase it.

`GoalMeter` estimates the mean accuracy and the latency of the requests on their way. `Sought` is a price, or
another positive number, that moves while a figure is on the wrong side of its limit. Three followers join
them: `ModelGoal` keeps the goal of one model for the goal router, `EnergyLimit` its limits on energy and
power, and `LearnedRouter` moves what a learned router takes as an input.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from slimsched.core.statistics import Fading, Spread
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.goal import QUANTILES, CostToGo, Goal, LatencyLimit
from slimsched.serving.gateway.observation import Observation

WINDOW_S = 2.0
"""Time over which means are taken; older figures fade."""

LONGEST_STEP_S = 10.0
"""A longer silence counts as this long: everything has settled by then, and exponents stay finite."""

TAIL_WINDOW_S = 1.0
"""The p99 covers this window and the one before, so that old latencies are soon forgotten."""


class GoalMeter:
    """Fading means, and the spread of ages, of the requests sent into the last two segments.

    When a request is routed to its last segment, its whole plan and its age are known. The last segment is
    expected to take as long as the time between the last two routings.
    """

    def __init__(self) -> None:
        self._accuracy = Fading()
        self._age_s = Fading(), Fading()  # when routed to the last segment but one, and to the last
        self._ages, self._older_ages = Spread(), Spread()  # of this window, and of the one before
        self._window_s = 0.0

    @property
    def accuracy(self) -> float | None:
        """Expected mean accuracy of the requests sent into their last segment."""
        return self._accuracy.mean if self._accuracy.weight else None

    def latency_s(self, figure: str) -> float | None:
        """Return a figure of latency: p99, p95 or mean; None while nothing is known."""
        before, last = (age_s.mean for age_s in self._age_s)
        if not self._age_s[0].weight or not last:
            return None
        rest = max(1.0, 2.0 - before / last)
        if figure == "mean":
            return last * rest
        (age_s,) = self._ages.quantiles(QUANTILES[figure], beside=self._older_ages)
        return age_s * rest

    def least_room(self, limits: Sequence[LatencyLimit], aim: float) -> tuple[float, LatencyLimit] | None:
        """Return the limit that leaves the least room, and how much: a share of it, of `aim` less is used."""
        figures = [(self.latency_s(limit.figure), limit) for limit in limits]
        rooms = [(aim - used_s / limit.limit_s, limit) for used_s, limit in figures if used_s is not None]
        return min(rooms, key=lambda one: one[0], default=None)

    def missing(self, floor: float) -> float:
        """Return how far accuracy is below a floor, in units of `FLOOR_SCALE`; 0 while it is not known."""
        return (floor - self._accuracy.mean) / FLOOR_SCALE if self._accuracy.weight else 0.0

    def sent(self, model: ServedModel, seen: Observation, choice: int, count: int) -> None:
        """Note that a block of the head is sent at a choice: its age tells its latency."""
        segments_left = model.segments - seen.segment
        if segments_left > 2:
            return
        youngest_s = seen.arrival_s + count / max(seen.arrival_rate_per_s, 1.0)
        accuracy = model.quality.best_reachable((*seen.path, choice))
        self.note(max(0.0, seen.now_s - youngest_s), count, accuracy, last=segments_left == 1)

    def answered(self, model: ServedModel, request: Request, count: int, now_s: float) -> None:
        """Note answers, where ages on the way do not tell the latency."""
        accuracy = model.expected_accuracy(request.path, request.trail)
        for last in (False, True):
            self.note(now_s - request.arrival_s, count, accuracy, last=last)

    def note(self, age_s: float, count: int, accuracy: float, *, last: bool) -> None:
        """Note requests sent to one of the last two segments; accuracy only counts for the last."""
        self._age_s[last].note(count * age_s, count)
        if last:
            self._accuracy.note(count * accuracy, count)
            self._ages.add(age_s, count)

    def fade(self, passed_s: float) -> None:
        """Let time pass."""
        kept = exp(-passed_s / WINDOW_S)
        for mean in (self._accuracy, *self._age_s):
            mean.fade(kept)
        self._window_s += passed_s
        if self._window_s >= TAIL_WINDOW_S and self._ages.counts.any():
            self._window_s = 0.0
            self._older_ages, self._ages = self._ages, Spread()


FLOOR_SCALE = 0.005
"""Distance from an accuracy floor at which everything that follows it moves at full pace."""


class Sought:
    """A positive number that grows or shrinks by e^(pace · time · error) within its range.

    The error is how far a figure is from its limit, in units that the owner chooses; more than 1 counts as 1.
    """

    def __init__(self, value: float, least: float, most: float) -> None:
        self.value, self._least, self._most = value, least, most

    def move(self, error: float, per_s: float, passed_s: float) -> None:
        """Grow while the error is above 0, shrink while it is below."""
        moved = self.value * exp(per_s * passed_s * max(-1.0, min(1.0, error)))
        self.value = max(self._least, min(self._most, moved))


OBJECTIVE_PRICES: NDArray[np.float64] = np.geomspace(1e-4, 4.0, 64)
"""Prices of the energy or time of one widest plan, in accuracy: in steps, because each makes tables."""

PRICE_RANGE = (float(OBJECTIVE_PRICES[0]), float(OBJECTIVE_PRICES[-1]))


def price_step(sought: float) -> int:
    """Return the number of the price nearest to the one that is sought."""
    return int(np.abs(np.log(OBJECTIVE_PRICES / sought)).argmin())


ENERGY_AIM = 0.97
"""Share of a limit to aim for."""

SCALE = 0.05
"""Distance from that share, relative to the limit, at which the price moves at full pace."""

ENERGY_CHASE_PER_S = 2.5
LEAST_PER_S = 1e-6
"""Below this rate of answers nothing is known about energy per answer."""


class EnergyLimit:
    """Sets the price of energy that keeps energy per answer, and power, below the limits of a goal.

    The gateway knows what every batch drew and how many requests it answered. The price rises while one of
    the two is above its limit, and falls while both are below. Without a limit it stays 0.
    """

    def __init__(self, goal: Goal, idle_w: float) -> None:
        self._goal, self._idle_w = goal, idle_w
        self._sought = Sought(PRICE_RANGE[0], *PRICE_RANGE)
        self.price = 0.0
        self.binding = ""
        """The limit that sets the price now."""

    def update(self, active_w: float, answered_per_s: float, passed_s: float) -> None:
        """Move the price, given the power above idle and the rate of answers."""
        goal = self._goal
        if not goal.limits_energy or answered_per_s < LEAST_PER_S:
            return
        used = []  # the share of each limit
        if goal.energy_j:
            used.append((active_w / answered_per_s / goal.energy_j, f"energy<={1e3 * goal.energy_j:g}mJ"))
        if goal.power_w:
            used.append(((active_w + self._idle_w) / goal.power_w, f"power<={goal.power_w:g}W"))
        most, clause = max(used, key=lambda one: one[0])
        self._sought.move((most - ENERGY_AIM) / SCALE, ENERGY_CHASE_PER_S, passed_s)
        step = price_step(self._sought.value)
        self.price = float(OBJECTIVE_PRICES[step]) if step else 0.0
        self.binding = clause if self.price else ""


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
        self._sought = Sought(0.02, *PRICE_RANGE)
        self._floor_price = 0.0 if goal.objective == "accuracy" else self._sought.value
        self.objective_price = self._floor_price
        """The price of the objective: what the accuracy floor leaves, or what a limit on energy asks for."""
        self._competes = competes
        self._boost = Sought(1.0, 1.0, MOST_BOOST)
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
        if self._limits:
            least_s = min(limit.limit_s for limit in self._limits)
            self._aim(START * (least_s - empty_s), least_s / self._segments)

    @property
    def boost(self) -> float:
        """What the model gained because it is below its floor, in steps: each makes tables of its own."""
        return float(BOOST_STEP ** round(log(self._boost.value, BOOST_STEP)))

    @property
    def is_short(self) -> bool:
        """Whether the model has been below its floor for a while: then it may ask for what must be loaded."""
        return self._boost.value >= SHORT_BOOST

    def note(self, seen: Observation, choice: int, count: int) -> None:
        """Note that a block of the head is sent at a choice."""
        if self._foretells:
            self.meter.sent(self.model, seen, choice, count)

    def answered(self, request: Request, count: int, now_s: float, *, planned: bool) -> None:
        """Note answers, for models whose ages on the way do not tell the latency."""
        if planned or not self._foretells:
            self.meter.answered(self.model, request, count, now_s)

    def chase(self, passed_s: float) -> None:
        """Move the backlog target towards the latency limit, and the objective's price towards the floor."""
        self.binding, self.objective_price = "", self._floor_price
        if self._limits:
            self._keep_latency(passed_s)
        if self.goal.min_accuracy and self.meter.accuracy is not None:
            self._keep_accuracy(passed_s)

    def pay_for_energy(self, price: float, binding: str) -> None:
        """Raise the objective's price to what a limit on energy or power asks for; it decides then."""
        if price > self.objective_price:
            self.objective_price, self.binding = price, binding

    def _keep_latency(self, passed_s: float) -> None:
        """Move the backlog target by the limit that leaves the least room."""
        tightest = self.meter.least_room(self._limits, AIM)
        if tightest is None:
            return
        room, limit = max(-1.0, tightest[0]), tightest[1]
        pace = RISE_PER_S if room > 0.0 else FALL_PER_S
        target_s = self.target_s + passed_s * pace * room * limit.limit_s / self._segments
        self._aim(target_s, limit.limit_s / self._segments)
        if room < BINDS:
            self.binding = limit.text

    def _keep_accuracy(self, passed_s: float) -> None:
        """Move the objective's price, or what the model is worth, towards the accuracy floor."""
        goal, missing = self.goal, self.meter.missing(self.goal.min_accuracy)
        if goal.objective != "accuracy" and not self.binding:
            self.binding = f"accuracy>={100 * goal.min_accuracy:g}"
        if self._competes:
            self._boost.move(missing, BOOST_PER_S, passed_s)
        if goal.objective != "accuracy":
            self._sought.move(missing, -CHASE_PER_S, passed_s)
            self.objective_price = self._floor_price = float(OBJECTIVE_PRICES[price_step(self._sought.value)])
        elif missing > 0.0 and not self._limits:
            self._aim(self.target_s * exp(CHASE_PER_S * passed_s * min(1.0, missing)), TARGET_LIMIT_S)

    def _aim(self, target_s: float, limit_s: float) -> None:
        self.target_s = max(TARGET_LEAST_S, min(limit_s, target_s))


def share_out(models: Sequence[ModelGoal]) -> None:
    """Set what a point of each model's accuracy is worth: its weight and its boost, over the least of each.

    Where all models are below their floors all boosts are alike, and the weights alone decide.
    """
    least, least_boost = min(one.model.weight for one in models), min(one.boost for one in models)
    for one in models:
        one.worth = (one.model.weight / least) * (one.boost / least_boost)
