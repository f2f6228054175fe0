"""The paper's PPO router, equations (1) to (13).

State (1) is in `routing.routers.ppo.state_of`, the reward (7) in `learning.rollout.Outcome.reward` and the
update (6) to (13) in `kernel.ppo`. The rest is here. What the paper leaves open is decided in
docs/decisions/0030-ppo-where-the-paper-is-silent.md.
"""

from collections.abc import Callable
from random import Random

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.kernel.ppo import Collected, Losses, UpdateOptions, advantages, learn
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.learning.rollout import Outcome, RewardWeights, Rollout
from slimsched.serving.routing.routers.ppo import Decision, PpoRouter, most_choices
from slimsched.serving.routing.routers.random import group_sizes

Values = NDArray[np.float64]


class PpoOptions(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a training run: the paper's constants where it gives them (clip, c_v, K), else ours."""

    weights: RewardWeights = RewardWeights()
    updates: int = 90
    clusters: int = 4  # simulated side by side, with staggered episodes
    window_s: float = 0.25  # simulated time per cluster between updates
    episode_s: float = 12.0
    hidden: int = 64
    epsilon_max: float = 0.3
    epsilon_min: float = 0.02
    epsilon_share: float = 0.5  # T_dec as a share of the updates


# ---------------------------------------------------------------------------------- (3) the network


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


# ------------------------------------------------------------------------------- (5) exploration


def epsilon_at(step: float, decay_steps: float, low: float, high: float) -> float:
    """ε_t = max(ε_min, ε_max + t / T_dec · (ε_min − ε_max)), eq. (5)."""
    return max(low, high + step / decay_steps * (low - high))


# ---------------------------------------------------------------------- collect, update, report


class Progress(Struct, frozen=True, kw_only=True):
    """The means over one update: one point of the training curve."""

    update: int
    decisions: int
    reward: float
    accuracy: float
    latency_s: float
    energy_j: float
    imbalance: float
    entropy: float
    value_loss: float
    epsilon: float


class PpoTrainer:
    """Repeats collect → advantages → update → report; clusters keep running between updates."""

    def __init__(self, scenario: Scenario, options: PpoOptions, *, seed: int) -> None:
        self.options = options
        self.scenario = scenario.with_load(seconds=options.episode_s)
        self._seed = 1_000_000 + 1000 * seed  # far from the seeds used in comparisons
        torch.manual_seed(seed)
        self._shuffle = torch.Generator().manual_seed(seed)
        cluster = scenario.cluster
        state = 2 + 3 * len(cluster)
        choices = (len(cluster), most_choices(cluster), len(group_sizes(cluster.batch_limit)))
        self.network = PolicyNetwork(state, choices, options.hidden)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=options.learning_rate)
        self.mean, self.deviation, self._states = np.zeros(state), np.ones(state), 0.0
        self._routers = [
            PpoRouter(cluster, Random(f"{seed}/{number}"), self.weights(), options.epsilon_max)
            for number in range(options.clusters)
        ]
        self._rollouts: list[Rollout | None] = [None] * options.clusters
        self.update_number = 0
        self._scale = 1.0  # running deviation of rewards, which keeps the targets of V near 1

    def train(self, report: Callable[[Progress], None]) -> None:
        """Do all remaining updates."""
        while self.update_number < self.options.updates:
            report(self.step())

    def step(self) -> Progress:
        """Simulate one window of time, then update once."""
        options = self.options
        epsilon = epsilon_at(
            self.update_number,
            max(1.0, options.epsilon_share * options.updates),
            options.epsilon_min,
            options.epsilon_max,
        )
        decisions, outcomes = self._collect(epsilon)
        rewards = np.array([outcome.reward(options.weights) for outcome in outcomes])
        last = self._update(decisions, rewards, epsilon)
        self.update_number += 1
        return Progress(
            update=self.update_number,
            decisions=len(decisions),
            reward=float(rewards.mean()),
            accuracy=float(np.mean([outcome.accuracy for outcome in outcomes])),
            latency_s=float(np.mean([outcome.latency_s for outcome in outcomes])),
            energy_j=float(np.mean([outcome.energy_j for outcome in outcomes])),
            imbalance=float(np.mean([outcome.imbalance for outcome in outcomes])),
            entropy=float(last.entropy.detach()),
            value_loss=float(last.value.detach()),
            epsilon=epsilon,
        )

    def _collect(self, epsilon: float) -> tuple[list[Decision], list[Outcome]]:
        """Run one window of every cluster; return the blocks that came back and their decisions."""
        weights, decisions, outcomes = self.weights(), [], []
        for number, router in enumerate(self._routers):
            router.epsilon = epsilon
            router.use(weights)
            back = self._rollout(number).advance(self.options.window_s)
            made = router.decisions
            assert made is not None
            decisions += [made[outcome.decision] for outcome in back]
            outcomes += back
        return decisions, outcomes

    def _rollout(self, number: int) -> Rollout:
        """Return a cluster's episode; start a new one if it is over. First episodes differ in length."""
        rollout = self._rollouts[number]
        if rollout is None or rollout.is_over:
            share = 1.0 if rollout is not None else (number + 1) / len(self._rollouts)
            self._seed += 1
            scenario = self.scenario.with_load(seconds=share * self.options.episode_s)
            self._routers[number].decisions = []
            rollout = self._rollouts[number] = Rollout(scenario, self._routers[number], seed=self._seed)
        return rollout

    def _update(self, decisions: list[Decision], rewards: Values, epsilon: float) -> Losses:
        """Train for K epochs of minibatches on the collected decisions."""
        network = self.network
        raw = np.array([decision.state for decision in decisions])
        self._normalise(raw)
        states = torch.tensor(np.clip((raw - self.mean) / self.deviation, -10.0, 10.0), dtype=torch.float32)
        self._scale += (
            0.1 * (float(rewards.std()) - self._scale) if self.update_number else float(rewards.std()) - 1
        )
        returns = torch.tensor(rewards / max(self._scale, 1e-6), dtype=torch.float32)
        with torch.no_grad():
            advantage = advantages(returns, network(states)[1])
        collected = Collected(
            actions=torch.tensor([decision.action for decision in decisions]),
            epsilon=torch.full((len(decisions),), epsilon),
            old_log_probability=torch.tensor(
                [decision.log_probability for decision in decisions], dtype=torch.float32
            ),
            advantage=advantage,
            returns=returns,
        )
        return learn(
            network,
            self.optimiser,
            collected,
            self.options,
            shuffle=self._shuffle,
            forward=lambda some: network(states[some]),
        )

    def _normalise(self, states: Values) -> None:
        """Update the running mean and deviation of the state, slowly, so old decisions stay comparable."""
        share = max(0.02, len(states) / (self._states + len(states)))
        self._states += len(states)
        self.mean += share * (states.mean(axis=0) - self.mean)
        self.deviation += share * (np.maximum(states.std(axis=0), 1e-3) - self.deviation)

    @property
    def statistics(self) -> tuple[float, float]:
        """The number of states seen and the running deviation of rewards."""
        return self._states, self._scale

    def resume(self, update: int, statistics: tuple[float, ...]) -> None:
        """Continue after this update; new episodes get seeds that were not used before."""
        self.update_number = update
        self._states, self._scale = statistics
        self._seed += update

    def router(self, cluster: Cluster, rng: Random) -> PpoRouter:
        """Make a router with the weights of this moment, for `simulate` and `compare`."""
        return PpoRouter(cluster, rng, self.weights(), self.options.epsilon_min)

    def weights(self) -> dict[str, Values]:
        """Return the weights that a PpoRouter needs."""
        weights = {
            name: value.detach().double().numpy().copy() for name, value in self.network.state_dict().items()
        }
        return {**weights, "state.mean": self.mean.copy(), "state.deviation": self.deviation.copy()}
