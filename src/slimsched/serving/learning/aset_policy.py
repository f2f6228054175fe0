"""The policy of ASET: one network that picks a router by the state of the whole system.

The reward of a decision is the mean reward of the blocks that were sent under it, as `ppo` counts it.
"""

from collections.abc import Sequence
from math import exp, log
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning.head_policy import WORTH_S, block_rewards, mlp
from slimsched.serving.learning.learner import Forward, load_weights, weights_of
from slimsched.serving.learning.rollout import Outcome
from slimsched.serving.routing.routers.aset import FAST, SYSTEM, AsetDecision, AsetRouter

Values = NDArray[np.float64]


class AsetNetwork(nn.Module):
    """Scores the routers to pick from, and estimates the value."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.policy = mlp(SYSTEM, hidden, FAST)
        self.value = mlp(SYSTEM, hidden)


class AsetPolicy:
    """Learns which router should decide; `v` is drawn anew for each episode."""

    def __init__(self, hidden: int = 32) -> None:
        self.network = AsetNetwork(hidden)

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> AsetRouter:
        """Make a router for one episode, which collects decisions."""
        v = exp(rng.uniform(log(WORTH_S[0]), log(WORTH_S[1])))
        router = AsetRouter(cluster, rng, self.weights(), v, epsilon=epsilon)
        router.decisions = []
        return router

    def rewards(
        self, router: AsetRouter, decisions: Sequence[AsetDecision], outcomes: Sequence[Outcome]
    ) -> Values:
        """Return, for each block, the mean reward of all blocks with the same slow decision."""
        log_v, gain = [one.state[0] for one in decisions], [one.gain for one in decisions]
        rewards = block_rewards(log_v, gain, outcomes)
        numbers = np.array([one.number for one in decisions], dtype=np.int64)
        _, which = np.unique(numbers, return_inverse=True)
        means: Values = np.bincount(which, rewards) / np.maximum(1, np.bincount(which))
        return means[which]

    def look(self, decisions: Sequence[AsetDecision]) -> None:
        """Do nothing: the features are scaled by hand."""

    def batch(self, decisions: Sequence[AsetDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        states = torch.tensor(np.array([one.state for one in decisions]), dtype=torch.float32)
        network = self.network

        def forward(some: Tensor) -> tuple[list[Tensor], Tensor]:
            rows = states[some]
            return [network.policy(rows)], network.value(rows).squeeze(1)

        return torch.tensor([[one.action] for one in decisions]), forward

    def weights(self) -> dict[str, Values]:
        """Return the weights that an AsetRouter needs, and those of the value."""
        return weights_of(self.network)

    def use(self, weights: dict[str, Values]) -> None:
        """Go on from these weights."""
        load_weights(self.network, weights)
