"""The goal of one model while it is served: how well it is met, and which prices follow from that."""

from collections.abc import Sequence
from math import exp, log

import numpy as np

from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request
from slimsched.serving.routing.cost_to_go import CostToGo
from slimsched.serving.routing.energy_limit import ENERGY_PRICES
from slimsched.serving.routing.goal import Goal, LatencyLimit
from slimsched.serving.routing.goal_meter import GoalMeter
from slimsched.serving.routing.observation import Observation

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

FLOOR_SCALE = 0.005
"""Distance from the accuracy floor at which prices and target move at full pace."""

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
