"""The routers that PPO trained: the paper's, and one that sees the head of the queue. They need only numpy.

The paper's state (1) does not say which segment is to be routed, nor where its input lies. This router sees
both. It scores every server with the same network, draws one, and then scores every choice on that server
with a second network. So one policy file fits any cluster and any model. Training starts from a simple rule,
`server_prior` and `choice_prior`, to which the networks add what was learned.

`v` says how many seconds of waiting a unit of accuracy is worth. It is an input of both networks: one policy
covers the whole trade-off of accuracy against latency.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log1p
from random import Random
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError
from slimsched.core.pareto import best_at_some_price
from slimsched.core.statistics import follow
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster, Values
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Estimate, Observation, Route
from slimsched.serving.routers.classic import group_sizes
from slimsched.serving.routers.goal_following import LONGEST_STEP_S, GoalMeter, Sought

WEIGHTS = {"state.mean", "state.deviation"} | {
    f"{layer}.{part}" for layer in ("input", "hidden", "heads") for part in ("weight", "bias")
}
"""The names of a policy's weights."""


def most_choices(cluster: Cluster) -> int:
    """Return the size of the second head: the number of choices in the segment with the most."""
    return max(len(choices) for model in cluster.models for choices in model.spec.segments)


class PpoDecision(Struct, frozen=True):
    """One routing decision as PPO needs it: the state, the action, ε and the log-probability (6)."""

    state: Values
    alive: NDArray[np.bool_]
    action: tuple[int, int, int]
    epsilon: float
    log_probability: float


def state_of(seen: Observation) -> Values:
    """Return s_t of eq. (1): FIFO, log of done; by server: log of queue, power, share of time used."""
    servers = len(seen.queued)
    state = np.empty(2 + 3 * servers)
    state[0], state[1] = seen.fifo, log1p(seen.done)
    state[2::3] = np.log1p(seen.queued)
    state[3::3] = seen.power_w
    state[4::3] = seen.utilization
    return state


class PpoRouter:
    """The paper's: takes the state (1), samples server, choice and group, (2)-(5); ε explores servers."""

    def __init__(self, cluster: Cluster, rng: Random, weights: Mapping[str, Values], epsilon: float) -> None:
        self._groups = group_sizes(cluster.batch_limit)
        self._servers = len(cluster)
        self._trees = [model.tree for model in cluster.models]
        self._choices = most_choices(cluster)
        self._random = rng.random
        self.epsilon = epsilon
        self.decisions: list[PpoDecision] | None = None
        """If this is a list, every decision is appended to it."""
        self.use(weights)

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        check_weights("ppo", sorted(WEIGHTS), weights, train="slim router train ppo")
        wanted = (2 + 3 * self._servers, self._servers + self._choices + len(self._groups))
        given = (weights["input.weight"].shape[1], weights["heads.weight"].shape[0])
        if wanted != given:
            raise ConfigError(
                f"this policy was trained for {(given[0] - 2) // 3} servers and {given[1]} choices, here are "
                f"{self._servers} and {wanted[1]}; train one with: slim router train ppo --scenario NAME"
            )
        self._mean, self._scale = weights["state.mean"], 1.0 / weights["state.deviation"]
        self._input = (weights["input.weight"].T.copy(), weights["input.bias"])
        self._hidden = (weights["hidden.weight"].T.copy(), weights["hidden.bias"])
        self._heads = (weights["heads.weight"].T.copy(), weights["heads.bias"])

    def route(self, seen: Observation) -> Route:
        """Sample from the three heads; servers that are down are masked."""
        state = state_of(seen)
        logits = self._logits(state)
        servers, count = self._servers, self._choices
        server_p = softmax(logits[:servers] - seen.penalty_s)
        server_p = (1.0 - self.epsilon) * server_p + self.epsilon * seen.alive / len(seen.alive_ids)
        tree = self._trees[seen.model]
        choices = tree.choices[tree.row[seen.path]]
        choice_p = softmax(logits[servers : servers + count])
        if len(choices) < count:
            choice_p = np.where(np.isin(np.arange(count), choices), choice_p, 0.0)
            choice_p /= choice_p.sum()
        group_p = softmax(logits[servers + count :])
        server, choice, group = [draw(p, self._random()) for p in (server_p, choice_p, group_p)]
        if self.decisions is not None:
            action, chance = (server, choice, group), server_p[server] * choice_p[choice] * group_p[group]
            self.decisions.append(
                PpoDecision(state, seen.alive.copy(), action, self.epsilon, float(np.log(chance)))
            )
        return Route(server, choice, self._groups[group], "sampled from the policy")

    def _logits(self, state: Values) -> Values:
        """Return MLP_θ of eq. (3), all heads in one vector."""
        x = np.clip((state - self._mean) * self._scale, -10.0, 10.0)
        x = np.tanh(x @ self._input[0] + self._input[1])
        x = np.tanh(x @ self._hidden[0] + self._hidden[1])
        logits: Values = x @ self._heads[0] + self._heads[1]
        return logits


Layer = tuple[Values, Values]

IN_USE = 4.0
"""Logits are multiplied by this outside training, so that chance only settles what is nearly equal."""


RANGE_S = (0.1, 40.0)
"""The range of v: twice as far in both directions as in training."""

V_AIM = 0.95
"""Share of the latency limit to aim for."""

V_RISE_PER_S, V_FALL_PER_S, V_CHASE_PER_S = 1.0, 4.0, 1.5
"""How fast v rises and falls with the room below a latency limit, and follows an accuracy floor."""


class LearnedRouter:
    """Holds v, the seconds of waiting that a unit of accuracy is worth, and lets it follow a goal.

    The goal is that of the cluster's first model. A limit on latency lowers v while latency is above it and
    raises v while there is room. Without such a limit, v follows the accuracy floor.
    """

    def __init__(self, cluster: Cluster, v: float, goal: Goal | None) -> None:
        self.v = v
        """How many seconds of waiting a unit of accuracy is worth now."""
        self.goal = goal or Goal()
        """The goal that v follows."""
        self._cluster, self._meter = cluster, GoalMeter()
        limits = self._limits = self.goal.of((cluster.active or cluster.models)[0].name)
        self._is_stated = bool(limits.latency_limits or limits.min_accuracy)  # whether v follows anything
        self._narrowest = follow(0.0, 0.01)  # share of the last hundred decisions at the narrowest choice
        self._now_s, self._plans = -1.0, False

    def begin(self, seen: Observation) -> None:
        """Let time pass and move v, once per scheduling step."""
        self._plans, now_s = seen.plans, seen.now_s
        if now_s == self._now_s or not self._is_stated:
            return
        passed_s = 0.0 if self._now_s < 0.0 else min(LONGEST_STEP_S, now_s - self._now_s)
        self._now_s, limits, meter, v = now_s, self._limits, self._meter, Sought(self.v, *RANGE_S)
        meter.fade(passed_s)
        if tightest := meter.least_room(limits.latency_limits, V_AIM):
            room = tightest[0]
            v.move(room, V_RISE_PER_S if room > 0.0 else V_FALL_PER_S, passed_s)
        if limits.min_accuracy and meter.accuracy is not None:
            missing = meter.missing(limits.min_accuracy)
            if limits.objective != "accuracy" or (missing > 0.0 and not limits.latency_limits):
                v.move(missing, V_CHASE_PER_S, passed_s)
        self.v = v.value

    def sent(self, seen: Observation, choice: int, *, is_narrowest: bool) -> None:
        """Note the choice at which the head is sent."""
        self._narrowest.note(is_narrowest)
        if self._is_stated and not seen.plans:
            count = min(seen.count, self._cluster.batch_limit)
            self._meter.sent(self._cluster.models[seen.model], seen, choice, count)

    @property
    def saturated(self) -> bool:
        """Whether it could hardly choose narrower."""
        return self._narrowest.mean > 0.8

    def knows(self, model: int, path: Path) -> bool:
        """Whether some plan of a model begins with this path."""
        return path in self._cluster.models[model].tree.row

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """Note answers, where whole networks are planned and ages on the way say nothing."""
        if self._plans and self._is_stated:
            for request, count in alike(requests):
                self._meter.answered(self._cluster.models[request.model], request, count, now_s)


def check_weights(
    router: str, names: Sequence[str], weights: Mapping[str, Values], *, train: str = "slim router train"
) -> None:
    """Refuse weights of another kind of router; `train` is the command that makes the right ones."""
    if missing := [name for name in names if name not in weights]:
        raise ConfigError(
            f"this is no policy of the router {router}: it has no '{missing[0]}'; train one with: {train}"
        )


def layers_of(weights: Mapping[str, Values], net: str) -> list[Layer]:
    """Return the matrices of a network with two hidden layers, as torch's Sequential names them."""
    return [
        (weights[f"{net}.{layer}.weight"].T.copy(), weights[f"{net}.{layer}.bias"]) for layer in (0, 2, 4)
    ]


def names_of(*nets: str) -> tuple[str, ...]:
    """Return the names of the weights of such networks."""
    return tuple(
        f"{net}.{layer}.{part}" for net in nets for layer in (0, 2, 4) for part in ("weight", "bias")
    )


def outputs(layers: list[Layer], shared: Values, rows: Values) -> Values:
    """Return the outputs of a network for each row; its first inputs are shared by all rows."""
    (first, bias), (second, more), (last, offset) = layers
    x = np.tanh(rows @ first[len(shared) :] + (shared @ first[: len(shared)] + bias))
    x = np.tanh(x @ second + more)
    logits: Values = x @ last + offset
    return logits


def softmax(logits: Values) -> Values:
    """Return chances from logits, along the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances: Values = raised / raised.sum(axis=-1, keepdims=True)
    return chances


def draw(chances: Values, random: float) -> int:
    """Return the place in a list of chances that a random number below 1 falls on."""
    return min(int(chances.cumsum().searchsorted(random, side="right")), len(chances) - 1)


class ChoiceValues:
    """What the choices after a path may still come to, by server, when device time has a price.

    A choice is worth what the best plan that begins with it is worth: the accuracy of that plan, less the
    price of the work that is left after the choice. Without a queue the best plan is the widest; the dearer
    device time is, the narrower it goes on. Plans that are best at no price are left out, so few remain.
    """

    def __init__(self, cluster: Cluster, model: ServedModel, path: Path) -> None:
        tree = model.tree
        self.numbers = [int(choice) for choice in tree.choices[tree.row[path]]]
        """The choices, narrowest first."""
        longer = [(*path, choice) for choice in self.numbers]
        self.work_s: Values = np.array([cluster.work_s[model.key_of_path(one)] for one in longer])
        """Device time of the next segment, (choices, servers)."""
        kept = [_best_plans(cluster, model, one) for one in longer]
        most = max(len(accuracy) for accuracy, _ in kept)
        again = [np.arange(most) % len(accuracy) for accuracy, _ in kept]  # equally many for each choice
        self._accuracy: Values = np.array([one[0][rows] for one, rows in zip(kept, again, strict=True)])
        self._rest_s: Values = np.array([one[1][rows] for one, rows in zip(kept, again, strict=True)])

    def gain(self, price_per_s: Values) -> Values:
        """Return what each choice is worth above the narrowest, (choices, servers), in accuracy.

        `price_per_s` says how much accuracy a second of device time costs on each server.
        """
        worth: Values = (self._accuracy[:, :, None] - price_per_s * self._rest_s).max(axis=1)
        worth -= worth[0].copy()
        return worth

    def gain_on(self, server: int, price_per_s: float) -> Values:
        """Return the same for one server, (choices,)."""
        worth: Values = (self._accuracy - price_per_s * self._rest_s[:, :, server]).max(axis=1)
        worth -= float(worth[0])
        return worth


def _best_plans(cluster: Cluster, model: ServedModel, path: Path) -> tuple[Values, Values]:
    """Return the accuracy (plans,) and the work after a path (plans, servers) of plans best at some price."""
    tree, done = model.tree, len(path)
    plans = [plan for plan in tree.plans if plan[:done] == path]
    accuracy = np.array([model.weight * model.quality.accuracy(plan) for plan in plans])
    none_s = np.zeros(len(cluster))
    rest_s = np.array([sum([cluster.work_s[k] for k in model.legs(plan)[done:]], none_s) for plan in plans])
    kept: set[int] = set()
    for column in np.unique(rest_s, axis=1).T:
        kept.update(best_at_some_price(column, accuracy))
    rows = sorted(kept)
    return accuracy[rows], rest_s[rows]


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

    values: ChoiceValues
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
        work_s = ahead.values.work_s
        run_s = count * work_s[-1]
        end_s = seen.backlog_s + move_s + run_s
        behind = seen.outstanding + count
        caused_s = behind * work_s - v * ahead.values.gain(behind / v)
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
        choices[:, 0] = ahead.values.gain_on(server, behind / v) / POINT
        choices[:, 1] = ahead.relative[:, server]
        choices[:, 2] = np.minimum(delay, 8.0)
        choices[:, 3] = np.log1p(delay)
        choices[:, 4] = np.minimum(drift, 8.0)
        choices[:, 5] = np.log1p(drift)
        choices[:, 6] = len(path) / self._cluster.models[seen.model].segments
        return choices

    def _ahead(self, model: int, path: Path) -> _Ahead:
        values = ChoiceValues(self._cluster, self._cluster.models[model], path)
        work_s = values.work_s
        extra_s = np.maximum(0.0, work_s - work_s[0])
        return _Ahead(values, extra_s, work_s / work_s[-1], extra_s / work_s[-1].mean())


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
        v = self.v
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
        choice = self.features.ahead(seen.model, seen.path).values.numbers[way]
        self.sent(seen, choice, is_narrowest=way == 0)
        return Route(server, choice, self._group, "learned")

    def with_goal(self, goal: Goal) -> "HeadPpoRouter":
        """Return the same policy with another goal."""
        return HeadPpoRouter(self._cluster, self._rng, self._weights, self.v, goal=goal)
