"""KaiS: a slow agent says which choices each server keeps, a fast one sends blocks. Our reading of the idea.

Han et al., "Tailored Learning-Based Scheduling for Kubernetes-Oriented Edge-Cloud System" (2021), learn on
two time scales. A central agent with a graph network orchestrates which services each node runs, and agents
at the edge dispatch each request. Here the services are the widths of a model. Every 0.5 s the slow agent
picks for each server the choices that it keeps: narrow, middle, wide or all. One network looks at each server
and at the mean over all servers, which is one step of message passing in a star. The fast agent scores every
server with one shared network, as `ppo` does, and takes the best of the choices kept there by the rule that
`ppo` starts from. Both fit any number of servers. The paper rewards throughput; ours has the reward of `ppo`.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import PositiveAmount
from slimsched.core.policy_file import read_policy
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.routers.classic import DriftPlusPenaltyRouter
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.learned import (
    HEAD_V,
    IN_USE,
    UNIT_S,
    HeadFeatures,
    LearnedRouter,
    check_weights,
    choice_prior,
    draw,
    layers_of,
    names_of,
    outputs,
    server_prior,
    softmax,
)
from slimsched.serving.routers.registry import FALLBACK_V

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

SHIPPED = Path(__file__).with_name("kais-0.safetensors")
"""The policy beside this file; kais-0.json says how it was trained."""

TRAIN = "python benchmarks/rivals/learn.py train kais"
"""The command that trains another."""

EVERY_S = 0.5
"""Time between two decisions of the slow agent."""

KEPT = ((0.0, 0.34), (0.33, 0.67), (0.66, 1.0), (0.0, 1.0))
"""Which choices a server keeps, as shares of the way from the narrowest to the widest."""

NODE, SYSTEM = 6, 2
"""The number of features of a server and of the system that the slow agent sees."""


class KaisDecision(Struct, frozen=True):
    """One block as PPO needs it: what the fast and the slow agent saw, and both actions."""

    context: Values  # (CONTEXT,)
    servers: Values  # (servers, SERVER)
    alive: Flags
    slow: "SlowDecision"
    action: tuple[int, int]  # the server, and which choices it keeps
    gain: float  # what the choice is worth above the narrowest, in units of POINT
    epsilon: float
    log_probability: float


class SlowDecision(Struct, frozen=True):
    """Which choices each server keeps, and why."""

    system: Values  # (SYSTEM,)
    nodes: Values  # (servers, NODE)
    alive: Flags
    kept: NDArray[np.int64]  # (servers,): the row of KEPT
    log_probability: Values  # (servers,)


class KaisFeatures:
    """Turns an observation into the inputs of the slow agent."""

    def __init__(self, cluster: Cluster) -> None:
        active = cluster.active or cluster.models
        self._full_s = np.mean([cluster.plan_s(model, model.spec.widest) for model in active], axis=0)

    def of(self, seen: Observation, v: float) -> tuple[Values, Values]:
        """Return the features of the system (SYSTEM,) and of each server (servers, NODE)."""
        nodes = np.empty((len(seen.alive), NODE))
        nodes[:, 0] = 0.25 * np.log1p(seen.backlog_s / UNIT_S)
        nodes[:, 1] = 0.25 * np.log1p(seen.outstanding)
        nodes[:, 2] = seen.utilization
        nodes[:, 3] = np.log(np.maximum(seen.lateness, 0.05))
        nodes[:, 4] = np.log(self._full_s / self._full_s.mean())
        nodes[:, 5] = seen.alive
        capacity_per_s = float((1.0 / self._full_s) @ seen.alive) or 1.0
        return np.array([np.log(v), np.log1p(seen.arrival_rate_per_s / capacity_per_s)]), nodes


class KaisRouter(LearnedRouter):
    """Sends each block to a server, at the best of the choices that the server keeps."""

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
        self.decisions: list[KaisDecision] | None = None
        """If this is a list, every decision is appended to it."""
        self._fast_features, self._slow_features = HeadFeatures(cluster), KaisFeatures(cluster)
        self._decided_s = -EVERY_S
        self._slow: SlowDecision | None = None
        self._group = cluster.batch_limit
        self.use(weights)

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        check_weights("kais", names_of("server", "keep"), weights, train=TRAIN)
        self._server, self._keep = layers_of(weights, "server"), layers_of(weights, "keep")

    def route(self, seen: Observation) -> Route:
        """Let the slow agent decide if it is time, then choose a server and a choice that it keeps."""
        self.begin(seen)
        if self._slow is None or seen.now_s - self._decided_s >= EVERY_S:
            self._decided_s, self._slow = seen.now_s, self._orchestrate(seen)
        slow, v = self._slow, self.v
        numbers = self._fast_features.ahead(seen.model, seen.path).values.numbers
        kept = kept_choices(len(numbers))[:, slow.kept]  # (choices, servers)
        context, servers = self._fast_features.of_servers(seen, v, kept)
        logits = server_prior(servers) + outputs(self._server, context, servers)[:, 0] - seen.penalty_s
        server_p = softmax(logits if self.decisions is not None else IN_USE * logits)
        if self.epsilon:
            server_p = (1.0 - self.epsilon) * server_p + self.epsilon * seen.alive / len(seen.alive_ids)
        server = draw(server_p, self._rng.random())
        choices = self._fast_features.of_choices(seen, v, server, seen.path)
        way = int(np.where(kept[:, server], choice_prior(choices), -np.inf).argmax())
        if self.decisions is not None:
            chance = float(np.log(server_p[server]) + slow.log_probability[server])
            action, gain, alive = (server, int(slow.kept[server])), float(choices[way, 0]), seen.alive.copy()
            self.decisions.append(
                KaisDecision(context, servers, alive, slow, action, gain, self.epsilon, chance)
            )
        self.sent(seen, numbers[way], is_narrowest=way == 0)
        return Route(server, numbers[way], self._group, "learned")

    def with_goal(self, goal: Goal) -> "KaisRouter":
        """Return the same policy with another goal."""
        return KaisRouter(self._cluster, self._rng, self._weights, self.v, goal=goal)

    def _orchestrate(self, seen: Observation) -> SlowDecision:
        """Draw what each server keeps in training; in use, take the likeliest."""
        system, nodes = self._slow_features.of(seen, self.v)
        alive = seen.alive.copy()
        mean: Values = nodes[alive].mean(axis=0) if alive.any() else nodes.mean(axis=0)
        chances = softmax(outputs(self._keep, np.concatenate([system, mean]), nodes))  # (servers, KEPT)
        if self.decisions is None:
            kept = chances.argmax(axis=1)
        else:
            kept = np.array([draw(row, self._rng.random()) for row in chances])
        return SlowDecision(system, nodes, alive, kept, np.log(chances[np.arange(len(kept)), kept]))


@lru_cache(maxsize=64)
def kept_choices(count: int) -> Flags:
    """Return which of `count` choices each row of KEPT keeps, (choices, KEPT); all where it would be none."""
    place = np.arange(count) / max(1, count - 1)
    flags = np.array([(low <= place) & (place <= high) for low, high in KEPT]).T
    flags[:, ~flags.any(axis=0)] = True
    return flags


class Kais(GuardedRouter):
    """The kais behind the guard of `ppo`: `--router benchmarks/rivals/kais.py:Kais`.

    `policy` is a file that `learn.py train kais` wrote. `v` says how many seconds of waiting a unit of
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
        learned = KaisRouter(cluster, rng, weights, v, goal=goal)
        super().__init__(learned, DriftPlusPenaltyRouter(cluster, rng, v=FALLBACK_V), shadow=shadow)
