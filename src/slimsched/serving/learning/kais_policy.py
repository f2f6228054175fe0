"""The policy of KaiS: one network says what each server keeps, another to which server a block goes.

A block counts as two decisions: the slow one about the server it went to, and its own. Both get its reward,
as `ppo` counts it.
"""

from collections.abc import Sequence
from math import exp, log
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.kernel.ppo import IMPOSSIBLE
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning.head_policy import WORTH_S, block_rewards, mlp
from slimsched.serving.learning.learner import Forward, load_weights, weights_of
from slimsched.serving.learning.rollout import Outcome
from slimsched.serving.routing.routers.kais import KEPT, NODE, SYSTEM, KaisDecision, KaisRouter
from slimsched.serving.routing.routers.ppo_head import CONTEXT, SERVER, server_prior

Values = NDArray[np.float64]


class KaisNetwork(nn.Module):
    """Scores servers, scores what each keeps, and estimates the value from means over servers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.server = mlp(CONTEXT + SERVER, hidden)
        self.keep = mlp(SYSTEM + 2 * NODE, hidden, len(KEPT))
        self.value = mlp(CONTEXT + SYSTEM + NODE, hidden)


class KaisPolicy:
    """Learns both agents for any number of servers; `v` is drawn anew for each episode."""

    def __init__(self, hidden: int = 32) -> None:
        self.network = KaisNetwork(hidden)

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> KaisRouter:
        """Make a router for one episode, which collects decisions."""
        v = exp(rng.uniform(log(WORTH_S[0]), log(WORTH_S[1])))
        router = KaisRouter(cluster, rng, self.weights(), v, epsilon=epsilon)
        router.decisions = []
        return router

    def rewards(
        self, router: KaisRouter, decisions: Sequence[KaisDecision], outcomes: Sequence[Outcome]
    ) -> Values:
        """Return the reward of each block, by the v of its decision."""
        log_v, gain = [one.context[0] for one in decisions], [one.gain for one in decisions]
        return block_rewards(log_v, gain, outcomes)

    def look(self, decisions: Sequence[KaisDecision]) -> None:
        """Do nothing: the features are scaled by hand."""

    def batch(self, decisions: Sequence[KaisDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        count = len(decisions)
        servers = np.zeros((count, max(len(one.servers) for one in decisions), SERVER), dtype=np.float32)
        is_server = np.zeros(servers.shape[:2], dtype=bool)
        slow = np.empty((count, SYSTEM + 2 * NODE), dtype=np.float32)
        for row, one in enumerate(decisions):
            servers[row, : len(one.servers)] = one.servers
            is_server[row, : len(one.alive)] = one.alive
            alive = one.slow.alive if one.slow.alive.any() else ~one.slow.alive
            mean = one.slow.nodes[alive].mean(axis=0)
            slow[row] = np.concatenate([one.slow.system, mean, one.slow.nodes[one.action[0]]])
        context = np.array([one.context for one in decisions], dtype=np.float32)
        tensors = tuple(map(torch.tensor, (context, servers, slow, is_server)))
        return torch.tensor([one.action for one in decisions]), lambda some: self._forward(
            *(tensor[some] for tensor in tensors)
        )

    def _forward(
        self,
        context: Tensor,  # (rows, CONTEXT)
        servers: Tensor,  # (rows, servers, SERVER)
        slow: Tensor,  # (rows, SYSTEM + 2 NODE), of the server that was drawn
        is_server: Tensor,  # (rows, servers)
    ) -> tuple[list[Tensor], Tensor]:
        network = self.network
        around = context[:, None].expand(-1, servers.shape[1], -1)
        server = network.server(torch.cat([around, servers], dim=2)).squeeze(2) + server_prior(servers)
        system = slow[:, : SYSTEM + NODE]  # nothing that depends on which server was drawn
        value = network.value(torch.cat([context, system], dim=1)).squeeze(1)
        return [server.masked_fill(~is_server, IMPOSSIBLE), network.keep(slow)], value

    def weights(self) -> dict[str, Values]:
        """Return the weights that a KaisRouter needs, and those of the value."""
        return weights_of(self.network)

    def use(self, weights: dict[str, Values]) -> None:
        """Go on from these weights."""
        load_weights(self.network, weights)
