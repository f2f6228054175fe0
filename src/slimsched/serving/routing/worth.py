"""Worth: how much waiting a unit of accuracy is worth, so that a stated goal is met.

A learned policy takes `v`, the worth of accuracy in seconds, as an input. A goal states limits instead, and v
follows them while requests are served. A limit on latency lowers v while latency is above it and raises v
while there is room. Without such a limit, v follows the accuracy floor.
"""

from collections.abc import Sequence
from math import exp

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.goal_meter import LONGEST_STEP_S, GoalMeter
from slimsched.serving.routing.observation import Observation

RANGE_S = (0.1, 40.0)
"""The range of v: twice as far in both directions as in training."""

AIM = 0.95
"""Share of the latency limit to aim for."""

RISE_PER_S, FALL_PER_S, CHASE_PER_S = 1.0, 4.0, 1.5
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
            AIM - figure_s / limit.limit_s
            for limit in limits.latency_limits
            if (figure_s := self._meter.latency_s(limit.figure)) is not None
        ]
        if rooms:
            room = max(-1.0, min(1.0, min(rooms)))
            self._move(passed_s * room * (RISE_PER_S if room > 0.0 else FALL_PER_S))
        if limits.min_accuracy and accuracy is not None:
            missing = max(-1.0, min(1.0, (limits.min_accuracy - accuracy) / FLOOR_SCALE))
            if limits.objective != "accuracy" or (missing > 0.0 and not limits.latency_limits):
                self._move(CHASE_PER_S * passed_s * missing)

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
