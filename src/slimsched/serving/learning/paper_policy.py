"""The paper's policy: state (1), three heads (2), a shared MLP (3)(4), and the reward (7)."""

from collections.abc import Sequence
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.core.ppo import IMPOSSIBLE
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning.learner import Forward, load_weights, weights_of
from slimsched.serving.learning.rollout import Outcome, RewardWeights
from slimsched.serving.routing.routers.ppo import Decision, PpoRouter, most_choices
from slimsched.serving.routing.routers.random import group_sizes

Values = NDArray[np.float64]

EPSILON = 0.02
"""How often the trained policy still draws a server at random."""


class PolicyNetwork(nn.Module):
    """(ℓ_srv, ℓ_w, ℓ_g, V)(s) = MLP(s): two shared layers, three heads in one matrix, one value."""

    def __init__(self, state: int, choices: tuple[int, int, int], hidden: int) -> None:
        super().__init__()
        self.choices = choices
        self.input = nn.Linear(state, hidden)
        self.hidden = nn.Linear(hidden, hidden)
        self.heads = nn.Linear(hidden, sum(choices))
        self.value = nn.Linear(hidden, 1)
        nn.init.zeros_(self.heads.bias)
        nn.init.normal_(self.heads.weight, std=0.01)  # start as uniform random routing

    def forward(self, states: Tensor) -> tuple[list[Tensor], Tensor]:
        x = torch.tanh(self.hidden(torch.tanh(self.input(states))))
        return list(self.heads(x).split(self.choices, dim=1)), self.value(x).squeeze(1)


class PaperPolicy:
    """Learns the paper's policy for one cluster.

    The mean and the deviation of each input are taken before the first update and stay: if they moved, the
    policy would change between a decision and its update, and ρ (9) would not begin at 1.
    """

    def __init__(self, cluster: Cluster, weights: RewardWeights, hidden: int = 64) -> None:
        self._reward = weights
        size = 2 + 3 * len(cluster)
        choices = (len(cluster), most_choices(cluster), len(group_sizes(cluster.batch_limit)))
        self.network = PolicyNetwork(size, choices, hidden)
        self._mean, self._deviation = np.zeros(size), np.ones(size)

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> PpoRouter:
        """Make a router for one episode, which collects decisions."""
        router = PpoRouter(cluster, rng, self.weights(), epsilon)
        router.decisions = []
        return router

    def trained(self, cluster: Cluster, rng: Random) -> PpoRouter:
        """Make a router with the weights of this moment, for `simulate` and `compare`."""
        return PpoRouter(cluster, rng, self.weights(), EPSILON)

    def rewards(
        self, router: PpoRouter, decisions: Sequence[Decision], outcomes: Sequence[Outcome]
    ) -> Values:
        """Return the reward (7) of each block."""
        return np.array([outcome.reward(self._reward) for outcome in outcomes])

    def look(self, decisions: Sequence[Decision]) -> None:
        """Take the mean and the deviation of the inputs."""
        states = np.array([decision.state for decision in decisions])
        self._mean, self._deviation = states.mean(axis=0), np.maximum(states.std(axis=0), 1e-3)

    def batch(self, decisions: Sequence[Decision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        raw = np.array([decision.state for decision in decisions])
        scaled = np.clip((raw - self._mean) / self._deviation, -10.0, 10.0)
        states = torch.tensor(scaled, dtype=torch.float32)
        dead = torch.tensor(np.array([~decision.alive for decision in decisions]))

        def forward(some: Tensor) -> tuple[list[Tensor], Tensor]:
            (servers, *others), values = self.network(states[some])
            return [servers.masked_fill(dead[some], IMPOSSIBLE), *others], values

        return torch.tensor([decision.action for decision in decisions]), forward

    def weights(self) -> dict[str, Values]:
        """Return the weights that a PpoRouter needs, and those of the value."""
        weights = weights_of(self.network)
        return {**weights, "state.mean": self._mean.copy(), "state.deviation": self._deviation.copy()}

    def use(self, weights: dict[str, Values]) -> None:
        """Go on from these weights."""
        load_weights(self.network, weights)
        self._mean, self._deviation = weights["state.mean"], weights["state.deviation"]
