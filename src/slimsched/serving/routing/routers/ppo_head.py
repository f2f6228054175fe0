"""PPO that sees the head of the queue: one small network for any number of servers and choices.

The paper's state (1) does not say which segment is to be routed, nor where its input lies. This router sees
both. It scores every server with the same network, draws one, and then scores every choice on that server
with a second network. So one policy file fits any cluster and any model. Training starts from a simple rule,
`server_prior` and `choice_prior`, to which the networks add what was learned.

`v` says how many seconds of waiting a unit of accuracy is worth. It is an input of both networks: one policy
covers the whole trade-off of accuracy against latency. It needs only numpy.
"""

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.learned_router import (
    IN_USE,
    LearnedRouter,
    check_weights,
    draw,
    layers_of,
    names_of,
    outputs,
    softmax,
)
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.prospect import Prospect
from slimsched.serving.routing.router import Route

Values = NDArray[np.float64]

CONTEXT, SERVER, CHOICE = 6, 10, 7
"""The number of features of the system, of a server and of a choice."""

HEAD_V = 2.0
"""Seconds of waiting that a unit of accuracy is worth, unless the operator says otherwise."""

UNIT_S = 0.002
"""Waiting times enter as log(1 + time / unit)."""

POINT = 0.02
"""Accuracy enters in steps of this size: about what one width more is worth."""

MOVE = 2.0
"""What a second of moving inputs counts beside a second of waiting: it takes time on two links."""

COST_S = 0.005
"""The unit of what a server costs; not in proportion to v, so that many servers stay told apart at any v."""

AT_STAKE = 0.25
"""Outside training, the choice is corrected in full only where this much waiting is at stake, in accuracy."""

LINK = 0.25
"""Share of a server's outstanding requests that are taken to wait behind a move for the same links."""

SHARPNESS = 30.0
"""How strongly the rule that training starts from prefers a step of accuracy, or its worth in waiting."""

LAYERS = names_of("server", "choice")
"""The names of a policy's weights."""

Numbers = TypeVar("Numbers", Values, Any)
"""An array of numpy, or a tensor of torch in training."""


def server_prior(servers: Numbers) -> Numbers:
    """Return where training starts: the less waiting a server's best choice causes, the likelier it is."""
    return -10.0 * servers[..., 3]


def choice_prior(choices: Numbers) -> Numbers:
    """Return where training starts: the accuracy a choice gains, less the waiting it causes by profile."""
    return SHARPNESS * (choices[..., 0] - choices[..., 2])


class HeadDecision(Struct, frozen=True):
    """One routing decision as PPO needs it: what was seen, what was drawn, and its log-probability."""

    context: Values  # (CONTEXT,)
    servers: Values  # (servers, SERVER)
    alive: NDArray[np.bool_]
    choices: Values  # (choices, CHOICE), on the server that was drawn
    action: tuple[int, int]  # server, position of the choice
    epsilon: float
    log_probability: float


class _Ahead(Struct, frozen=True):
    """The choices after a path, with figures that do not change, by (choice, server)."""

    prospect: Prospect
    extra_s: Values  # work above that of the narrowest
    relative: Values  # work over that of the widest
    drift: Values  # extra work over the mean of the widest, as drift-plus-penalty counts it


class HeadFeatures:
    """Turns an observation into the inputs of the two networks."""

    def __init__(self, cluster: Cluster) -> None:
        self.estimate = Estimate(cluster)
        self._cluster = cluster
        self.ahead = lru_cache(maxsize=None)(self._ahead)
        active = cluster.active or cluster.models
        full_s = np.mean([cluster.plan_s(model, model.spec.widest) for model in active], axis=0)
        self._plans_per_s = 1.0 / full_s

    def of_servers(
        self, seen: Observation, v: float, kept: NDArray[np.bool_] | None = None
    ) -> tuple[Values, Values]:
        """Return the features of the system (CONTEXT,) and of each server (servers, SERVER).

        `kept` says which choices each server may run, (choices, servers), where it may not run all.
        """
        ahead = self.ahead(seen.model, seen.path)
        count = min(seen.count, self.estimate.group)
        move_s = self._cluster.move_s(seen.model, seen.segment, seen.previous, seen.source, count)
        work_s = ahead.prospect.work_s
        run_s = count * work_s[-1]
        end_s = seen.backlog_s + move_s + run_s
        behind = seen.outstanding + count
        caused_s = behind * work_s - v * ahead.prospect.gain(behind / v)
        if kept is not None:
            caused_s = np.where(kept, caused_s, np.inf)
        cost_s = (MOVE + LINK * seen.outstanding / count) * move_s + caused_s.min(axis=0)
        least_s = float((cost_s + seen.penalty_s).min())
        servers = np.empty((len(end_s), SERVER))
        servers[:, 0] = 0.25 * np.log1p(seen.backlog_s / UNIT_S)
        servers[:, 1] = 0.25 * np.log1p(move_s / UNIT_S)
        servers[:, 2] = 0.25 * np.log(run_s / UNIT_S)
        servers[:, 3] = np.clip((cost_s - least_s) / COST_S, -5.0, 5.0)
        servers[:, 4] = np.clip(5.0 * (end_s - (end_s + seen.penalty_s).min()), -5.0, 5.0)
        servers[:, 5] = 0.0
        if seen.source >= 0:
            servers[seen.source, 5] = 1.0
        servers[:, 6] = seen.utilization
        servers[:, 7] = 0.25 * np.log1p(seen.queued)
        servers[:, 8] = np.log(run_s / run_s.mean())
        servers[:, 9] = np.log(np.maximum(seen.lateness, 0.05))
        capacity_per_s = float(self._plans_per_s @ seen.alive) or 1.0
        depth = self._cluster.models[seen.model].segments
        context = np.array(
            [
                np.log(v),
                seen.segment / depth,
                np.log1p(seen.arrival_rate_per_s / capacity_per_s),
                0.25 * np.log1p(max(0.0, (end_s + seen.penalty_s).min()) / UNIT_S),
                0.25 * np.log1p(float(seen.backlog_s @ seen.alive) / (len(seen.alive_ids) or 1) / UNIT_S),
                float(seen.source >= 0),
            ]
        )
        return context, servers

    def of_choices(self, seen: Observation, v: float, server: int, path: Path) -> Values:
        """Return the features of each choice after a path on a server, (choices, CHOICE)."""
        ahead = self.ahead(seen.model, path)
        behind = float(seen.outstanding[server]) + min(seen.count, self.estimate.group)
        delay = behind * ahead.extra_s[:, server] / (v * POINT)
        drift = float(seen.backlog_s[server]) * ahead.drift[:, server] / (v * POINT)
        choices = np.empty((len(delay), CHOICE))
        choices[:, 0] = ahead.prospect.gain_on(server, behind / v) / POINT
        choices[:, 1] = ahead.relative[:, server]
        choices[:, 2] = np.minimum(delay, 8.0)
        choices[:, 3] = np.log1p(delay)
        choices[:, 4] = np.minimum(drift, 8.0)
        choices[:, 5] = np.log1p(drift)
        choices[:, 6] = len(path) / self._cluster.models[seen.model].segments
        return choices

    def _ahead(self, model: int, path: Path) -> _Ahead:
        prospect = Prospect(self._cluster, self._cluster.models[model], path)
        work_s = prospect.work_s
        extra_s = np.maximum(0.0, work_s - work_s[0])
        return _Ahead(prospect, extra_s, work_s / work_s[-1], extra_s / work_s[-1].mean())


class HeadPpoRouter(LearnedRouter):
    """Draws a server, then a choice on it."""

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
        self.features = HeadFeatures(cluster)
        self._rng, self._weights = rng, weights
        self.epsilon = epsilon
        self.decisions: list[HeadDecision] | None = None
        """If this is a list, every decision is appended to it."""
        self._group = cluster.batch_limit
        self.use(weights)

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        check_weights("ppo", LAYERS, weights)
        self._server = layers_of(weights, "server")
        self._choice = layers_of(weights, "choice")

    def route(self, seen: Observation) -> Route:
        """Choose a server by the first network, and the choice on it by the second."""
        self.begin(seen)
        v = self.worth.v
        context, servers = self.features.of_servers(seen, v)
        logits = server_prior(servers) + outputs(self._server, context, servers)[:, 0] - seen.penalty_s
        sharp = 1.0 if self.decisions is not None else IN_USE
        server_p = softmax(sharp * logits)
        if self.epsilon:
            server_p = (1.0 - self.epsilon) * server_p + self.epsilon * seen.alive / len(seen.alive_ids)
        server = draw(server_p, self._rng.random())
        choices = self.features.of_choices(seen, v, server, seen.path)
        local = np.concatenate([context, servers[server]])
        learned = outputs(self._choice, local, choices)[:, 0]
        if self.decisions is None:
            learned *= min(1.0, float(choices[-1, 2]) / AT_STAKE)
        choice_p = softmax(sharp * (choice_prior(choices) + learned))
        way = draw(choice_p, self._rng.random())
        if self.decisions is not None:
            chance = float(np.log(server_p[server] * choice_p[way]))
            self.decisions.append(
                HeadDecision(
                    context, servers, seen.alive.copy(), choices, (server, way), self.epsilon, chance
                )
            )
        choice = self.features.ahead(seen.model, seen.path).prospect.numbers[way]
        self.sent(seen, choice, is_narrowest=way == 0)
        return Route(server, choice, self._group, "learned")

    def with_goal(self, goal: Goal) -> "HeadPpoRouter":
        """Return the same policy with another goal."""
        return HeadPpoRouter(self._cluster, self._rng, self._weights, self.v, goal=goal)
