"""The policies that PPO trains: the paper's, and one that sees the head of the queue.

The policy that sees the head of the queue: three small networks, and a reward that counts caused waiting.

    r = (v · gain − (latency − met) − caused − moved) / (v · POINT)

`gain` is what the choice is worth above the narrowest, if the request goes on as the present queue suggests
(`routers/learned.py`). `latency` is the block's own time, and `met` the part of it spent waiting behind
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
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.learning.ppo import Forward, load_weights, weights_of
from slimsched.serving.learning.rollout import Outcome, RewardWeights
from slimsched.serving.routers.classic import group_sizes
from slimsched.serving.routers.learned import (
    CHOICE,
    CONTEXT,
    HEAD_V,
    POINT,
    SERVER,
    HeadDecision,
    HeadPpoRouter,
    PpoDecision,
    PpoRouter,
    choice_prior,
    most_choices,
    server_prior,
)

# -- The paper's policy: state (1), three heads (2), a shared MLP (3)(4), and the reward (7).

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
        self, router: PpoRouter, decisions: Sequence[PpoDecision], outcomes: Sequence[Outcome]
    ) -> Values:
        """Return the reward (7) of each block."""
        return np.array([outcome.reward(self._reward) for outcome in outcomes])

    def look(self, decisions: Sequence[PpoDecision]) -> None:
        """Take the mean and the deviation of the inputs."""
        states = np.array([decision.state for decision in decisions])
        self._mean, self._deviation = states.mean(axis=0), np.maximum(states.std(axis=0), 1e-3)

    def batch(self, decisions: Sequence[PpoDecision]) -> tuple[Tensor, Forward]:
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
