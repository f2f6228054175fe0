"""ASET: a slow learned agent picks which classical router decides. Our reading of a paper's idea.

Castellano et al., "Scheduling Inference Workloads on Distributed Edge Clusters with Reinforcement Learning"
(2023), let an agent choose, for each short window, one of several fixed scheduling policies by the state of
the system. Ours looks every 0.1 s at the whole system and picks one of eight settings of the routers
drift-plus-penalty, sed and slackfit, which then routes every block. The paper learns by deep Q-learning and
counts requests in time; ours learns by PPO with the reward of `ppo`, so that both can be compared.
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import PositiveAmount
from slimsched.core.policy_file import read_policy
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Observation, Route, Router
from slimsched.serving.routers.classic import DriftPlusPenaltyRouter, SedRouter, SlackFitRouter
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.learned import (
    HEAD_V,
    UNIT_S,
    HeadFeatures,
    LearnedRouter,
    check_weights,
    draw,
    layers_of,
    names_of,
    outputs,
    softmax,
)
from slimsched.serving.routers.registry import FALLBACK_V

Values = NDArray[np.float64]

SHIPPED = Path(__file__).with_name("aset-0.safetensors")
"""The policy beside this file; aset-0.json says how it was trained."""

TRAIN = "python benchmarks/rivals/learn.py train aset"
"""The command that trains another."""

EVERY_S = 0.1
"""Time between two decisions of the slow agent."""

DRIFT_V, SED_SHARES, SLACK_SHARES = (0.1, 0.25, 0.5, 1.0, 2.0), (0.02, 0.06), (0.1,)
"""The settings of the routers to pick from."""

FAST = len(DRIFT_V) + len(SED_SHARES) + len(SLACK_SHARES)
SYSTEM = 10
"""The number of routers to pick from, and of features of the system."""


class AsetDecision(Struct, frozen=True):
    """One block as PPO needs it: the decision of the slow agent behind it, and what the choice is worth."""

    number: int  # of the slow decision
    state: Values  # (SYSTEM,)
    action: int
    epsilon: float
    log_probability: float
    gain: float = 0.0  # above the narrowest choice, in units of POINT


class SystemFeatures:
    """Turns an observation into a few figures about the whole system."""

    def __init__(self, cluster: Cluster) -> None:
        active = cluster.active or cluster.models
        full_s = np.mean([cluster.plan_s(model, model.spec.widest) for model in active], axis=0)
        self._plans_per_s = 1.0 / full_s
        self._usual_per_s = 0.0

    def of(self, seen: Observation, v: float) -> Values:
        """Return the features (SYSTEM,)."""
        alive = seen.alive if seen.alive.any() else np.ones_like(seen.alive)
        backlog_s, lateness = seen.backlog_s[alive], np.log(np.maximum(seen.lateness[alive], 0.05))
        utilization, rate_per_s = seen.utilization[alive], seen.arrival_rate_per_s
        self._usual_per_s += 0.05 * (rate_per_s - self._usual_per_s)
        return np.array(
            [
                np.log(v),
                np.log1p(rate_per_s / (float(self._plans_per_s @ seen.alive) or 1.0)),
                np.log((rate_per_s + 1.0) / (self._usual_per_s + 1.0)),
                0.25 * np.log1p(backlog_s.mean() / UNIT_S),
                0.25 * np.log1p(backlog_s.max() / UNIT_S),
                lateness.mean(),
                lateness.max(),
                utilization.mean(),
                utilization.std(),
                alive.mean(),
            ]
        )


class AsetRouter(LearnedRouter):
    """Lets the router decide that the slow agent picked last."""

    def __init__(
        self,
        cluster: Cluster,
        rng: Random,
        weights: Mapping[str, Values],
        v: float,
        *,
        epsilon: float = 0.0,
        goal: Goal | None = None,
    ) -> None:
        super().__init__(cluster, v, goal)
        self._rng, self._weights = rng, weights
        self.epsilon = epsilon
        self.decisions: list[AsetDecision] | None = None
        """If this is a list, every block is appended to it."""
        self.fast = fast_routers(cluster, rng)
        self._features, self._head_features = SystemFeatures(cluster), HeadFeatures(cluster)
        self._decided_s = -EVERY_S
        self._decision = AsetDecision(0, np.zeros(SYSTEM), 0, 0.0, 0.0)
        self.use(weights)

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        check_weights("aset", names_of("policy"), weights, train=TRAIN)
        self._policy = layers_of(weights, "policy")

    def route(self, seen: Observation) -> Route | None:
        """Let the slow agent decide if it is time, then ask the router that it picked."""
        self.begin(seen)
        if seen.now_s - self._decided_s >= EVERY_S:
            self._decided_s, self._decision = seen.now_s, self._decide(seen)
        route = self.fast[self._decision.action].route(seen)
        if route is not None:
            way = self._head_features.ahead(seen.model, seen.path).values.numbers.index(route.choice)
            if self.decisions is not None:
                choices = self._head_features.of_choices(seen, self.v, route.server, seen.path)
                self.decisions.append(replace(self._decision, gain=float(choices[way, 0])))
            self.sent(seen, route.choice, is_narrowest=way == 0)
        return route

    def with_goal(self, goal: Goal) -> "AsetRouter":
        """Return the same policy with another goal."""
        return AsetRouter(self._cluster, self._rng, self._weights, self.v, goal=goal)

    def _decide(self, seen: Observation) -> AsetDecision:
        """Draw a router in training; in use, take the likeliest."""
        state, number = self._features.of(seen, self.v), self._decision.number + 1
        chances = softmax(outputs(self._policy, state[:0], state[None])[0])
        if self.decisions is None:
            return AsetDecision(number, state, int(chances.argmax()), 0.0, 0.0)
        mixed = (1.0 - self.epsilon) * chances + self.epsilon / FAST
        action = draw(mixed, self._rng.random())
        return AsetDecision(number, state, action, self.epsilon, float(np.log(mixed[action])))


def fast_routers(cluster: Cluster, rng: Random) -> list[Router]:
    """Return the routers that the slow agent picks from."""
    return [
        *(DriftPlusPenaltyRouter(cluster, rng, v=v) for v in DRIFT_V),
        *(SedRouter(cluster, rng, share=share) for share in SED_SHARES),
        *(SlackFitRouter(cluster, rng, share=share) for share in SLACK_SHARES),
    ]


class Aset(GuardedRouter):
    """The aset behind the guard of `ppo`: `--router benchmarks/rivals/aset.py:Aset`.

    `policy` is a file that `learn.py train aset` wrote. `v` says how many seconds of waiting a unit of
    accuracy is worth; where a goal states limits, v follows them.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: Random,
        policy: Path = SHIPPED,
        v: PositiveAmount = HEAD_V,
        goal: Goal | None = None,
        shadow: bool = False,
    ) -> None:
        weights, _ = read_policy(policy)
        learned = AsetRouter(cluster, rng, weights, v, goal=goal)
        super().__init__(learned, DriftPlusPenaltyRouter(cluster, rng, v=FALLBACK_V), shadow=shadow)
