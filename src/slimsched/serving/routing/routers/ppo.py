"""The paper's PPO router: takes the state (1) and samples three choices (2)-(5). It needs only numpy."""

from collections.abc import Mapping
from math import log1p
from random import Random

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route
from slimsched.serving.routing.routers.random import group_sizes

Values = NDArray[np.float64]

WEIGHTS = {"state.mean", "state.deviation"} | {
    f"{layer}.{part}" for layer in ("input", "hidden", "heads") for part in ("weight", "bias")
}
"""The names of a policy's weights."""


def most_choices(cluster: Cluster) -> int:
    """Return the size of the second head: the number of choices in the segment with the most."""
    return max(len(choices) for model in cluster.models for choices in model.spec.segments)


class Decision(Struct, frozen=True):
    """One routing decision as PPO needs it: the state, the action, ε and the log-probability (6)."""

    state: Values
    alive: NDArray[np.bool_]
    action: tuple[int, int, int]
    epsilon: float
    log_probability: float


def state_of(seen: Observation) -> Values:
    """Return s_t of eq. (1): FIFO length, completed count, then queue, power and utilization by server.

    Counts are logarithms and utilization is a share, in the paper's order. The completed count is that of
    about the last second: the count since the start would only be a clock.
    """
    servers = len(seen.queued)
    state = np.empty(2 + 3 * servers)
    state[0], state[1] = log1p(seen.fifo), log1p(seen.done_rate_per_s)
    state[2::3] = np.log1p(seen.queued)
    state[3::3] = seen.power_w
    state[4::3] = seen.utilization
    return state


class PpoRouter:
    """Samples server, choice and group from three heads of a small model; ε explores servers only."""

    def __init__(self, cluster: Cluster, rng: Random, weights: Mapping[str, Values], epsilon: float) -> None:
        self._groups = group_sizes(cluster.batch_limit)
        self._servers = len(cluster)
        self._trees = [model.tree for model in cluster.models]
        self._choices = most_choices(cluster)
        self._random = rng.random
        self.epsilon = epsilon
        self.decisions: list[Decision] | None = None
        """If this is a list, every decision is appended to it."""
        self.use(weights)

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        if missing := WEIGHTS - set(weights):
            raise ConfigError(
                f"this is no policy of the router ppo: it has no '{min(missing)}'; "
                "train one with: slim router train ppo"
            )
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
        server_p = _softmax(logits[:servers] - seen.penalty_s)
        server_p = (1.0 - self.epsilon) * server_p + self.epsilon * seen.alive / len(seen.alive_ids)
        tree = self._trees[seen.model]
        choices = tree.choices[tree.row[seen.path]]
        choice_p = _softmax(logits[servers : servers + count])
        if len(choices) < count:
            choice_p = np.where(np.isin(np.arange(count), choices), choice_p, 0.0)
            choice_p /= choice_p.sum()
        group_p = _softmax(logits[servers + count :])
        action = (self._draw(server_p), self._draw(choice_p), self._draw(group_p))
        if self.decisions is not None:
            chance = server_p[action[0]] * choice_p[action[1]] * group_p[action[2]]
            self.decisions.append(
                Decision(state, seen.alive.copy(), action, self.epsilon, float(np.log(chance)))
            )
        return Route(action[0], action[1], self._groups[action[2]], "sampled from the policy")

    def _logits(self, state: Values) -> Values:
        """Return MLP_θ of eq. (3), all heads in one vector."""
        x = np.clip((state - self._mean) * self._scale, -10.0, 10.0)
        x = np.tanh(x @ self._input[0] + self._input[1])
        x = np.tanh(x @ self._hidden[0] + self._hidden[1])
        logits: Values = x @ self._heads[0] + self._heads[1]
        return logits

    def _draw(self, chances: Values) -> int:
        return min(int(chances.cumsum().searchsorted(self._random(), side="right")), len(chances) - 1)


def _softmax(logits: Values) -> Values:
    raised = np.exp(logits - logits.max())
    chances: Values = raised / raised.sum()
    return chances
