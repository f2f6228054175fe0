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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.learning.ppo import IMPOSSIBLE, Forward, Learner
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
    """(ℓ_srv, ℓ_w, ℓ_g, V)(s) = MLP(s): two shared layers, three heads in one matrix, one value.

    `state` keeps the mean and the deviation of each input.
    """

    def __init__(self, state: int, choices: tuple[int, int, int], hidden: int) -> None:
        super().__init__()
        self.choices = choices
        self.state = nn.Module()
        self.state.register_buffer("mean", torch.zeros(state, dtype=torch.float64))
        self.state.register_buffer("deviation", torch.ones(state, dtype=torch.float64))
        self.input = nn.Linear(state, hidden)
        self.hidden = nn.Linear(hidden, hidden)
        self.heads = nn.Linear(hidden, sum(choices))
        self.value = nn.Linear(hidden, 1)
        nn.init.normal_(self.heads.weight, std=0.01)
        bias = nn.init.zeros_(self.heads.bias).data  # start as random routing, but groups as likely as large
        bias[-choices[2] :] = log(2) * torch.arange(choices[2])

    def forward(self, states: Tensor) -> tuple[list[Tensor], Tensor]:
        x = torch.tanh(self.hidden(torch.tanh(self.input(states))))
        return list(self.heads(x).split(self.choices, dim=1)), self.value(x).squeeze(1)


class PaperPolicy(Learner):
    """Learns the paper's policy for one cluster.

    The mean and the deviation of each input are taken before the first update and stay: if they moved, the
    policy would change between a decision and its update, and ρ (9) would not begin at 1.
    """

    network: PolicyNetwork

    def __init__(self, cluster: Cluster, weights: RewardWeights, hidden: int = 64) -> None:
        self._reward = weights
        size = 2 + 3 * len(cluster)
        choices = (len(cluster), most_choices(cluster), len(group_sizes(cluster.batch_limit)))
        self.network = PolicyNetwork(size, choices, hidden)

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> PpoRouter:
        """Make a router for one episode, which collects decisions."""
        router = PpoRouter(cluster, rng, self.weights(), epsilon)
        router.decisions = []
        return router

    def trained(self, cluster: Cluster, rng: Random) -> PpoRouter:
        """Make a router with the weights of this moment, for `simulate` and `compare`."""
        return PpoRouter(cluster, rng, self.weights(), EPSILON)

    def rewards(self, decisions: Sequence[PpoDecision], outcomes: Sequence[Outcome]) -> Values:
        """Return the reward (7) of each block."""
        return np.array([outcome.reward(self._reward) for outcome in outcomes])

    def look(self, decisions: Sequence[PpoDecision]) -> None:
        """Take the mean and the deviation of the inputs."""
        states = np.array([decision.state for decision in decisions])
        deviation = np.maximum(states.std(axis=0), 1e-3)
        self.network.state.load_state_dict(
            {"mean": torch.tensor(states.mean(axis=0)), "deviation": torch.tensor(deviation)}
        )

    def batch(self, decisions: Sequence[PpoDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        usual = self.network.state.state_dict()
        raw = torch.tensor(np.array([decision.state for decision in decisions]))
        states = ((raw - usual["mean"]) / usual["deviation"]).clamp(-10.0, 10.0).float()
        dead = torch.tensor(np.array([~decision.alive for decision in decisions]))

        def forward(some: Tensor) -> tuple[list[Tensor], Tensor]:
            (servers, *others), values = self.network(states[some])
            return [servers.masked_fill(dead[some], IMPOSSIBLE), *others], values

        return torch.tensor([decision.action for decision in decisions]), forward


WORTH_S = (0.2, 20.0)
"""The range of v in training: seconds of waiting that a unit of accuracy is worth."""

LONGEST = 10.0
"""Rewards are cut at this many steps of accuracy below 0, so that a stalled server does not drown others."""


def draw_worth_s(rng: Random) -> float:
    """Draw v for an episode, evenly in its logarithm."""
    return exp(rng.uniform(log(WORTH_S[0]), log(WORTH_S[1])))


class HeadNetwork(nn.Module):
    """Scores servers and choices one by one, and estimates the value from means and minima over servers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.server = mlp(CONTEXT + SERVER, hidden)
        self.choice = mlp(CONTEXT + SERVER + CHOICE, hidden)
        self.value = mlp(CONTEXT + 2 * SERVER, hidden)


class HeadPolicy(Learner):
    """Learns one policy for any number of servers and choices; `v` is drawn anew for each episode.

    With a goal, v then follows it within the episode, as it does when the policy serves.
    """

    network: HeadNetwork

    def __init__(self, hidden: int = 32, goal: Goal | None = None) -> None:
        self.network = HeadNetwork(hidden)
        self._goal = goal

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> HeadPpoRouter:
        """Make a router for one episode, which collects decisions."""
        router = HeadPpoRouter(
            cluster, rng, self.weights(), draw_worth_s(rng), epsilon=epsilon, goal=self._goal
        )
        router.decisions = []
        return router

    def trained(self, cluster: Cluster, rng: Random) -> HeadPpoRouter:
        """Make a router with the weights of this moment, for `simulate` and `compare`."""
        return HeadPpoRouter(cluster, rng, self.weights(), HEAD_V)

    def rewards(self, decisions: Sequence[HeadDecision], outcomes: Sequence[Outcome]) -> Values:
        """Return the reward of each block, in steps of accuracy, by the v of its decision."""
        gain = [one.choices[one.action[1], 0] for one in decisions]
        return block_rewards([one.context[0] for one in decisions], gain, outcomes)

    def batch(self, decisions: Sequence[HeadDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        actions = torch.tensor([one.action for one in decisions])
        servers = _padded([one.servers for one in decisions])
        tensors = (
            torch.tensor(np.array([one.context for one in decisions])).float(),
            servers,
            servers[torch.arange(len(decisions)), actions[:, 0]],
            _padded([one.choices for one in decisions]),
            _padded([one.alive for one in decisions]).bool(),
            _padded([np.ones(len(one.choices)) for one in decisions]).bool(),
        )
        return actions, lambda some: self._forward(*(tensor[some] for tensor in tensors))

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


def _padded(rows: Sequence[NDArray[Any]]) -> Tensor:
    """Stack arrays of different lengths, with zeros behind the shorter ones."""
    return nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).float()


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
