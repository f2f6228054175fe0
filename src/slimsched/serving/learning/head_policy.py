"""The policy that sees the head of the queue: three small networks, and a reward that counts caused waiting.

    r = (v · gain − (latency − met) − caused − moved) / (v · POINT)

`gain` is what the choice is worth above the narrowest, if the request goes on as the present queue suggests
(`routing/prospect.py`). `latency` is the block's own time, and `met` the part of it spent waiting behind
others. `caused` is the waiting that its device time costs those behind it on the same server, and `moved`
stands for those behind it on the links. In the paper's reward a block pays for the queue it meets; here it
pays for the queue it makes. Both add up to the same waiting, but only the second depends on what was chosen.
So one step is enough: what a choice does later is in its reward.
"""

from collections.abc import Sequence
from math import exp, log
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.core.ppo import IMPOSSIBLE
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning.learner import Forward, load_weights, weights_of
from slimsched.serving.learning.rollout import Outcome
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.routers.ppo_head import (
    CHOICE,
    CONTEXT,
    HEAD_V,
    POINT,
    SERVER,
    HeadDecision,
    HeadPpoRouter,
    choice_prior,
    server_prior,
)

Values = NDArray[np.float64]

WORTH_S = (0.2, 20.0)
"""The range of v in training: seconds of waiting that a unit of accuracy is worth."""

LONGEST = 10.0
"""Rewards are cut at this many steps of accuracy below 0, so that a stalled server does not drown others."""


class HeadNetwork(nn.Module):
    """Scores servers and choices one by one, and estimates the value from means and minima over servers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.server = mlp(CONTEXT + SERVER, hidden)
        self.choice = mlp(CONTEXT + SERVER + CHOICE, hidden)
        self.value = mlp(CONTEXT + 2 * SERVER, hidden)


class HeadPolicy:
    """Learns one policy for any number of servers and choices; `v` is drawn anew for each episode.

    With a goal, v then follows it within the episode, as it does when the policy serves.
    """

    def __init__(
        self, hidden: int = 32, worth_s: tuple[float, float] = WORTH_S, goal: Goal | None = None
    ) -> None:
        self.network = HeadNetwork(hidden)
        self.worth_s = worth_s
        self._goal = goal

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> HeadPpoRouter:
        """Make a router for one episode, which collects decisions."""
        low, high = self.worth_s
        v = exp(rng.uniform(log(low), log(high)))
        router = HeadPpoRouter(cluster, rng, self.weights(), v, epsilon=epsilon, goal=self._goal)
        router.decisions = []
        return router

    def trained(self, cluster: Cluster, rng: Random, v: float = HEAD_V) -> HeadPpoRouter:
        """Make a router with the weights of this moment, for `simulate` and `compare`."""
        return HeadPpoRouter(cluster, rng, self.weights(), v)

    def rewards(
        self, router: HeadPpoRouter, decisions: Sequence[HeadDecision], outcomes: Sequence[Outcome]
    ) -> Values:
        """Return the reward of each block, in steps of accuracy, by the v of its decision."""
        gain = [one.choices[one.action[1], 0] for one in decisions]
        return block_rewards([one.context[0] for one in decisions], gain, outcomes)

    def look(self, decisions: Sequence[HeadDecision]) -> None:
        """Do nothing: the features are scaled by hand."""

    def batch(self, decisions: Sequence[HeadDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        count = len(decisions)
        servers = np.zeros((count, max(len(one.servers) for one in decisions), SERVER), dtype=np.float32)
        choices = np.zeros((count, max(len(one.choices) for one in decisions), CHOICE), dtype=np.float32)
        is_server, is_choice = (
            np.zeros(servers.shape[:2], dtype=bool),
            np.zeros(choices.shape[:2], dtype=bool),
        )
        for row, one in enumerate(decisions):
            servers[row, : len(one.servers)] = one.servers
            is_server[row, : len(one.alive)] = one.alive
            choices[row, : len(one.choices)] = one.choices
            is_choice[row, : len(one.choices)] = True
        context = np.array([one.context for one in decisions], dtype=np.float32)
        chosen = servers[np.arange(count), [one.action[0] for one in decisions]]
        tensors = tuple(map(torch.tensor, (context, servers, chosen, choices, is_server, is_choice)))
        return torch.tensor([one.action for one in decisions]), lambda some: self._forward(
            *(tensor[some] for tensor in tensors)
        )

    def _forward(
        self,
        context: Tensor,  # (rows, CONTEXT)
        servers: Tensor,  # (rows, servers, SERVER)
        chosen: Tensor,  # (rows, SERVER)
        choices: Tensor,  # (rows, choices, CHOICE)
        is_server: Tensor,  # (rows, servers)
        is_choice: Tensor,  # (rows, choices)
    ) -> tuple[list[Tensor], Tensor]:
        network = self.network
        around = context[:, None].expand(-1, servers.shape[1], -1)
        server = network.server(torch.cat([around, servers], dim=2)).squeeze(2) + server_prior(servers)
        local = torch.cat([context, chosen], dim=1)[:, None].expand(-1, choices.shape[1], -1)
        choice = network.choice(torch.cat([local, choices], dim=2)).squeeze(2) + choice_prior(choices)
        there = is_server[:, :, None]
        mean = (servers * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
        least = servers.masked_fill(~there, 10.0).min(dim=1).values
        value = network.value(torch.cat([context, mean, least], dim=1)).squeeze(1)
        return [server.masked_fill(~is_server, IMPOSSIBLE), choice.masked_fill(~is_choice, IMPOSSIBLE)], value

    def weights(self) -> dict[str, Values]:
        """Return the weights that a HeadPpoRouter needs, and those of the value."""
        return weights_of(self.network)

    def use(self, weights: dict[str, Values]) -> None:
        """Go on from these weights."""
        load_weights(self.network, weights)


def block_rewards(log_v: Sequence[float], gain: Sequence[float], outcomes: Sequence[Outcome]) -> Values:
    """Return the reward of each block, in steps of accuracy: its gain in such steps, less its costs."""
    cost_s = [out.latency_s - out.met_s + out.caused_s + out.moved_s for out in outcomes]
    return np.maximum(np.array(gain) - np.array(cost_s) / (np.exp(log_v) * POINT), -LONGEST)


def mlp(inputs: int, hidden: int, results: int = 1) -> nn.Sequential:
    """Two hidden layers and outputs that start near 0."""
    last = nn.Linear(hidden, results)
    nn.init.zeros_(last.bias)
    nn.init.normal_(last.weight, std=0.01)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), last)
