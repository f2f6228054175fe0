"""Trains a router by PPO on simulated clusters: collect → advantages → update → report.

The update (6) to (13) is in `kernel.ppo`, the reward (7) in `learning.rollout.Outcome.reward`. What is
trained is a learner: the paper's policy with state (1) (`paper_policy.py`), or the one that sees the head of
the queue (`head_policy.py`). What the paper leaves open is decided in docs/decisions/0030 and 0066.

The trainer needs a learner: a network, routers that use it, and rewards. A run is saved so that it can
resume.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.core.ppo import (
    Collected,
    Losses,
    UpdateOptions,
    advantages,
    checkpoint_errors,
    learn,
    read_checkpoint,
    write_checkpoint,
)
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.learning.rollout import Outcome, Rollout
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.pictures import pyplot

# -- What the PPO trainer needs of a policy: a network, routers that use it, and rewards.

Values = NDArray[np.float64]
Forward = Callable[[Tensor], tuple[list[Tensor], Tensor]]
"""Maps row numbers to the logits of every head and to the values."""


class LearningRouter(Protocol):
    """A router that keeps its decisions and can be given other weights."""

    epsilon: float
    decisions: Any

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        ...

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue."""
        ...


class Learner(Protocol):
    """A policy that is being trained."""

    @property
    def network(self) -> nn.Module:
        """The network with all weights that are trained."""
        ...

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> LearningRouter:
        """Make a router for one episode, which collects decisions."""
        ...

    def rewards(self, router: Any, decisions: Sequence[Any], outcomes: Sequence[Outcome]) -> Values:
        """Return the reward of each block that this router sent, by what it decided and what came of it."""
        ...

    def look(self, decisions: Sequence[Any]) -> None:
        """Look at decisions made before the first update, to learn what inputs are usual."""
        ...

    def batch(self, decisions: Sequence[Any]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        ...

    def weights(self) -> dict[str, Values]:
        """Return the weights that a router needs."""
        ...

    def use(self, weights: dict[str, Values]) -> None:
        """Go on from these weights."""
        ...


def weights_of(network: nn.Module) -> dict[str, Values]:
    """Return the weights of a network as arrays, which routers compute with."""
    return {name: value.detach().double().numpy().copy() for name, value in network.state_dict().items()}


def load_weights(network: nn.Module, weights: Mapping[str, Values]) -> None:
    """Let a network go on from these weights."""
    network.load_state_dict({name: torch.tensor(weights[name]).float() for name in network.state_dict()})


Draw = Callable[[np.random.Generator], Scenario]
"""Draws the scenario of the next episode."""


class PpoOptions(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a training run: the paper's constants where it gives them (clip, c_v, K), else ours."""

    updates: int = 150
    clusters: int = 4  # simulated side by side, with staggered episodes
    window_s: float = 0.25  # simulated time per cluster between updates
    episode_s: float = 12.0
    look_windows: int = 8  # windows before the first update, which only show what inputs are usual
    epsilon_max: float = 0.3
    epsilon_min: float = 0.02
    epsilon_share: float = 0.5  # T_dec as a share of the updates
    last_pace: float = 1.0  # the learning rate falls evenly to this share of itself


PAPER_OPTIONS = PpoOptions(updates=100)
"""For the paper's policy with state (1)."""

HEAD_OPTIONS = PpoOptions(
    updates=40,
    clusters=6,
    episode_s=3.0,
    look_windows=0,
    epsilon_max=0.1,
    epsilon_min=0.0,
    learning_rate=7e-4,
    last_pace=0.1,
)
"""For the policy that sees the head: shorter episodes on more clusters, and no exploration in the end."""


def epsilon_at(step: float, decay_steps: float, low: float, high: float) -> float:
    """ε_t = max(ε_min, ε_max + t / T_dec · (ε_min − ε_max)), eq. (5)."""
    return max(low, high + step / decay_steps * (low - high))


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


class _Episode(Struct):
    """One cluster under training: its run and the router that decides there."""

    rollout: Rollout
    router: LearningRouter


class PpoTrainer:
    """Repeats collect → advantages → update → report; clusters keep running between updates.

    `on` is the scenario to train on, or a function that draws one for each episode.
    """

    def __init__(self, learner: Learner, on: Scenario | Draw, options: PpoOptions, *, seed: int) -> None:
        self.learner = learner
        self.options = options
        self.update_number = 0
        self._draw: Draw = _always(on, options) if isinstance(on, Scenario) else on
        self._seed = 1_000_000 + 1000 * seed  # far from the seeds used in comparisons
        self._shuffle = torch.Generator().manual_seed(seed)
        self.optimiser = torch.optim.Adam(learner.network.parameters(), lr=options.learning_rate)
        self._episodes: list[_Episode | None] = [None] * options.clusters
        self._scale = 0.0  # running deviation of rewards, which keeps the targets of V near 1

    def train(self, report: Callable[[Progress], None]) -> None:
        """Do all remaining updates."""
        while self.update_number < self.options.updates:
            report(self.step())

    def step(self) -> Progress:
        """Simulate one window of time, then update once."""
        options = self.options
        if self.update_number == 0:
            self._look()
        epsilon = epsilon_at(
            self.update_number,
            max(1.0, options.epsilon_share * options.updates),
            options.epsilon_min,
            options.epsilon_max,
        )
        done = self.update_number / options.updates
        for group in self.optimiser.param_groups:
            group["lr"] = options.learning_rate * (1.0 + done * (options.last_pace - 1.0))
        decisions, outcomes, by_episode = self._collect(epsilon)
        rewards = np.concatenate(by_episode)
        last = self.learn_from(decisions, by_episode)
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

    def _look(self) -> None:
        """Let the learner see usual inputs before the first update."""
        seen: list[Any] = []
        for _ in range(self.options.look_windows):
            seen += self._collect(self.options.epsilon_max)[0]
        self.learner.look(seen)

    def _collect(self, epsilon: float) -> tuple[list[Any], list[Outcome], list[Values]]:
        """Run one window of every cluster; return the blocks that came back, their decisions and rewards.

        Rewards are grouped by cluster; decisions and outcomes are in the same order, one after another.
        """
        weights, decisions, outcomes = self.learner.weights(), [], []
        rewards: list[Values] = []
        for number in range(len(self._episodes)):
            episode = self._episode(number)
            episode.router.epsilon = epsilon
            episode.router.use(weights)
            back = episode.rollout.advance(self.options.window_s)
            decided = [episode.router.decisions[outcome.decision] for outcome in back]
            decisions += decided
            outcomes += back
            rewards.append(self.learner.rewards(episode.router, decided, back))
        return decisions, outcomes, rewards

    def _episode(self, number: int) -> _Episode:
        """Return a cluster's episode; start a new one if it is over. First episodes differ in length."""
        episode = self._episodes[number]
        if episode is None or episode.rollout.is_over:
            self._seed += 1
            scenario = self._draw(np.random.default_rng(self._seed))
            if episode is None:
                share = (number + 1) / len(self._episodes)
                scenario = scenario.with_load(seconds=share * scenario.load.seconds)
            router = self.learner.router(scenario.cluster, Random(self._seed), self.options.epsilon_max)
            episode = _Episode(Rollout(scenario, router, seed=self._seed), router)
            self._episodes[number] = episode
        return episode

    def learn_from(self, decisions: list[Any], by_episode: list[Values]) -> Losses:
        """Train for K epochs of minibatches on the collected decisions.

        Advantages (8) are normalised within each cluster: in a batch of easy and overloaded clusters, the
        latter would otherwise drown the rest.
        """
        rewards = np.concatenate(by_episode)
        deviation = float(rewards.std())
        self._scale = deviation if not self._scale else self._scale + 0.1 * (deviation - self._scale)
        returns = torch.tensor(rewards / max(self._scale, 1e-6), dtype=torch.float32)
        actions, forward = self.learner.batch(decisions)
        with torch.no_grad():
            values = forward(torch.arange(len(decisions)))[1]
            sizes = [len(rewards) for rewards in by_episode]
            pairs = zip(torch.split(returns, sizes), torch.split(values, sizes), strict=True)
            advantage = torch.cat([advantages(*pair) for pair in pairs if len(pair[0])])
        collected = Collected(
            actions=actions,
            epsilon=torch.tensor([decision.epsilon for decision in decisions], dtype=torch.float32),
            old_log_probability=torch.tensor(
                [decision.log_probability for decision in decisions], dtype=torch.float32
            ),
            advantage=advantage,
            returns=returns,
        )
        return learn(
            self.learner.network,
            self.optimiser,
            collected,
            self.options,
            shuffle=self._shuffle,
            forward=forward,
        )

    @property
    def scale(self) -> float:
        """The running deviation of rewards."""
        return self._scale

    def resume(self, update: int, scale: float) -> None:
        """Continue after this update; new episodes get seeds that were not used before."""
        self.update_number, self._scale = update, scale
        self._seed += 100 * update


def _always(scenario: Scenario, options: PpoOptions) -> Draw:
    """Train on one scenario only."""
    return lambda rng: scenario.with_load(seconds=options.episode_s)


# -- A training run on disk: saves it so that it can resume later, and plots its curve.


def save_run(path: Path, trainer: PpoTrainer, curve: list[Progress]) -> None:
    """Write what a run needs to resume: network, optimiser, statistics of the inputs, and curve."""
    write_checkpoint(
        path,
        trainer.learner.network,
        trainer.optimiser,
        {f"policy.{name}": torch.tensor(value) for name, value in trainer.learner.weights().items()},
        {"update": trainer.update_number, "scale": trainer.scale, "curve": msgspec.to_builtins(curve)},
    )


def resume_run(path: Path, trainer: PpoTrainer) -> list[Progress]:
    """Bring a trainer to where a saved run stopped, and return the curve so far."""
    with checkpoint_errors(path, "policy", "start without --resume"):
        tensors, story = read_checkpoint(path, trainer.learner.network, trainer.optimiser)
        trainer.learner.use(
            {name.removeprefix("policy."): value.numpy().copy() for name, value in tensors.items()}
        )
        trainer.resume(int(story["update"]), float(story["scale"]))
        return [msgspec.convert(row, Progress) for row in story["curve"]]


def plot_curve(series: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Plot each series over the updates, one panel per series."""
    plt = pyplot()
    figure, panels = plt.subplots(1, len(series), figsize=(4 * len(series), 3.2), layout="constrained")
    figure.suptitle(title)
    for panel, (name, values) in zip(panels, series.items(), strict=True):
        panel.plot(range(1, len(values) + 1), values, linewidth=1)
        panel.set(xlabel="update", title=name)
    figure.savefig(path, dpi=110)
    plt.close(figure)
