"""Trains a router by PPO on simulated clusters: collect → advantages → update → report.

The numbers in brackets are the equations of the Slim Scheduler paper. Several clusters are simulated side by
side. An update lets each of them run for a window of time; every block that comes back in it is one decision
with one reward, so an advantage is the reward less the value that was expected (8). The update then takes K
epochs of clipped steps over these decisions (9) to (13), and the clusters go on with the new weights.

What is trained is a `Learner`: a network, routers that decide with its weights, and rewards. There are two in
`policies.py`: the paper's policy with state (1), and one that sees the head of the queue. What the paper
leaves open is decided in docs/decisions/0030 and 0066.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from random import Random
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.core.config import DataError
from slimsched.core.plots import pyplot
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.observation import Router
from slimsched.serving.learning.rollout import Outcome, Rollout
from slimsched.serving.scenario.scenario import Scenario

Values = NDArray[np.float64]
Forward = Callable[[Tensor], tuple[list[Tensor], Tensor]]
"""Maps row numbers to the logits of every head and to the values."""

# -- The update: likelihood, advantages, losses, K epochs.

IMPOSSIBLE = -1e9
"""The logit of an action that cannot be taken. It is finite, so that its share of the entropy is 0."""


class UpdateOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paper's constants where it gives them (clip, c_v, K), otherwise our own."""

    epochs: int = 3  # K
    clip: float = 0.2  # ϵ
    value_weight: float = 0.5  # c_v
    entropy_weight: float = 0.003  # c_H
    gradient_norm: float = 0.5
    learning_rate: float = 1e-3
    minibatch: int = 512


def log_probability(logits: list[Tensor], actions: Tensor, epsilon: Tensor) -> Tensor:
    """Return log π̃(a|s), eqs. (5) and (6): the server head is mixed with ε of uniform, the others are not.

    Actions that could not be taken have the logit `IMPOSSIBLE`.
    """
    servers = (logits[0] > IMPOSSIBLE).sum(dim=1)
    server = torch.softmax(logits[0], dim=1).gather(1, actions[:, :1]).squeeze(1)
    mixed = (1.0 - epsilon) * server + epsilon / servers
    others = sum(
        torch.log_softmax(head, dim=1).gather(1, actions[:, column : column + 1]).squeeze(1)
        for column, head in enumerate(logits[1:], start=1)
    )
    return torch.log(mixed) + others


def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    """Return one-step advantages: R = r, A = R − V_old(s), then zero mean and unit deviation."""
    advantage = rewards - values
    return (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)


class Losses(Struct, frozen=True):
    """The parts of J, and J itself."""

    surrogate: Tensor  # L_CLIP
    value: Tensor  # L_V
    entropy: Tensor  # H
    total: Tensor  # J


class Collected(Struct, frozen=True, kw_only=True):
    """The decisions to learn from, one row each."""

    actions: Tensor
    epsilon: Tensor
    old_log_probability: Tensor
    advantage: Tensor
    returns: Tensor

    def rows(self, some: Tensor) -> "Collected":
        """Return the decisions with these row numbers."""
        return Collected(**{name: value[some] for name, value in msgspec.structs.asdict(self).items()})


def losses(logits: list[Tensor], values: Tensor, made: Collected, options: UpdateOptions) -> Losses:
    """Compute ρ (9), clipped surrogate (10), value loss (11), entropy of the heads (12), total (13)."""
    ratio = torch.exp(log_probability(logits, made.actions, made.epsilon) - made.old_log_probability)
    clipped = ratio.clamp(1.0 - options.clip, 1.0 + options.clip)
    surrogate = torch.min(ratio * made.advantage, clipped * made.advantage).mean()
    value = 0.5 * (made.returns - values).square().mean()
    entropy = torch.stack([-(head.softmax(1) * head.log_softmax(1)).sum(1).mean() for head in logits]).sum()
    total = -surrogate + options.value_weight * value - options.entropy_weight * entropy
    return Losses(surrogate, value, entropy, total)


def learn(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    collected: Collected,
    options: UpdateOptions,
    *,
    shuffle: torch.Generator,
    forward: Forward,
) -> Losses:
    """Run K epochs of minibatches and return the last losses; `forward` maps rows to logits and values."""
    for _ in range(options.epochs):
        order = torch.randperm(len(collected.actions), generator=shuffle)
        for some in torch.split(order, options.minibatch):
            logits, values = forward(some)
            last = losses(logits, values, collected.rows(some), options)
            optimiser.zero_grad()
            last.total.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), options.gradient_norm)
            optimiser.step()
    return last


# -- What is trained: a policy with a network, the routers that use it, and rewards.


class LearningRouter(Router, Protocol):
    """A router that keeps its decisions and can be given other weights."""

    epsilon: float
    decisions: Any

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""


class Learner(ABC):
    """A policy that is being trained."""

    network: nn.Module
    """Holds all weights that are trained, and in its buffers what else a router needs."""

    @abstractmethod
    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> LearningRouter:
        """Make a router for one episode, which collects decisions."""

    @abstractmethod
    def rewards(self, decisions: Sequence[Any], outcomes: Sequence[Outcome]) -> Values:
        """Return the reward of each block, by what was decided about it and what came of it."""

    @abstractmethod
    def batch(self, decisions: Sequence[Any]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""

    def look(self, decisions: Sequence[Any]) -> None:  # noqa: B027 - most learners need not
        """Look at decisions made before the first update, to learn what inputs are usual."""

    def weights(self) -> dict[str, Values]:
        """Return the weights that a router needs, as arrays, and those of the value."""
        state = self.network.state_dict()
        return {name: value.detach().double().numpy().copy() for name, value in state.items()}


Draw = Callable[[np.random.Generator], Scenario]
"""Draws the scenario of the next episode."""


# -- The trainer: its options, one point of its curve, and its loop.


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


PAPER_OPTIONS = PpoOptions(
    updates=36, episode_s=8.0, look_windows=4, entropy_weight=0.02, learning_rate=3e-3, last_pace=0.2
)
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


_Episode = tuple[Rollout, LearningRouter]
"""One cluster under training: its run and the router that decides there."""


class PpoTrainer:
    """Repeats collect → advantages → update → report; clusters keep running between updates.

    `on` is the scenario to train on, or a function that draws one for each episode.
    """

    def __init__(self, learner: Learner, on: Scenario | Draw, options: PpoOptions, *, seed: int) -> None:
        self.learner = learner
        self.options = options
        self.update_number = 0
        self._draw: Draw = on if callable(on) else lambda rng: on.with_load(seconds=options.episode_s)
        self._seed = 1_000_000 + 1000 * seed  # far from the seeds used in comparisons
        self._shuffle = torch.Generator().manual_seed(seed)
        self.optimiser = torch.optim.Adam(learner.network.parameters(), lr=options.learning_rate)
        self._episodes: list[_Episode | None] = [None] * options.clusters
        self.scale = 0.0
        """The running deviation of rewards, which keeps the targets of V near 1."""

    def train(self, report: Callable[[Progress], None]) -> None:
        """Do all remaining updates."""
        while self.update_number < self.options.updates:
            report(self.step())

    def step(self) -> Progress:
        """Simulate one window of time, then update once."""
        options = self.options
        if self.update_number == 0:
            seen: list[Any] = []
            for _ in range(options.look_windows):
                seen += self._collect(options.epsilon_max)[0]
            self.learner.look(seen)
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

    def _collect(self, epsilon: float) -> tuple[list[Any], list[Outcome], list[Values]]:
        """Run one window of every cluster; return the blocks that came back, their decisions and rewards.

        Rewards are grouped by cluster; decisions and outcomes are in the same order, one after another.
        """
        weights, decisions, outcomes = self.learner.weights(), [], []
        rewards: list[Values] = []
        for number in range(len(self._episodes)):
            rollout, router = self._episode(number)
            router.epsilon = epsilon
            router.use(weights)
            back = rollout.advance(self.options.window_s)
            decided = [router.decisions[outcome.decision] for outcome in back]
            decisions += decided
            outcomes += back
            rewards.append(self.learner.rewards(decided, back))
        return decisions, outcomes, rewards

    def _episode(self, number: int) -> _Episode:
        """Return a cluster's episode; start a new one if it is over. First episodes differ in length."""
        episode = self._episodes[number]
        if episode is None or episode[0].is_over:
            self._seed += 1
            scenario = self._draw(np.random.default_rng(self._seed))
            if episode is None:
                share = (number + 1) / len(self._episodes)
                scenario = scenario.with_load(seconds=share * scenario.load.seconds)
            router = self.learner.router(scenario.cluster, Random(self._seed), self.options.epsilon_max)
            episode = self._episodes[number] = Rollout(scenario, router, seed=self._seed), router
        return episode

    def learn_from(self, decisions: list[Any], by_episode: list[Values]) -> Losses:
        """Train for K epochs of minibatches on the collected decisions.

        Advantages (8) are normalised within each cluster: in a batch of easy and overloaded clusters, the
        latter would otherwise drown the rest.
        """
        rewards = np.concatenate(by_episode)
        deviation = float(rewards.std())
        self.scale = deviation if not self.scale else self.scale + 0.1 * (deviation - self.scale)
        returns = torch.tensor(rewards / max(self.scale, 1e-6), dtype=torch.float32)
        actions, forward = self.learner.batch(decisions)
        with torch.no_grad():
            values = forward(torch.arange(len(decisions)))[1]
            sizes = [len(rewards) for rewards in by_episode]
            pairs = zip(torch.split(returns, sizes), torch.split(values, sizes), strict=True)
            advantage = torch.cat([advantages(*pair) for pair in pairs if len(pair[0])])
        collected = Collected(
            actions=actions,
            epsilon=torch.tensor([one.epsilon for one in decisions], dtype=torch.float32),
            old_log_probability=torch.tensor([one.log_probability for one in decisions], dtype=torch.float32),
            advantage=advantage,
            returns=returns,
        )
        network, options = self.learner.network, self.options
        return learn(network, self.optimiser, collected, options, shuffle=self._shuffle, forward=forward)

    def resume(self, update: int, scale: float) -> None:
        """Continue after this update; new episodes get seeds that were not used before."""
        self.update_number, self.scale = update, scale
        self._seed += 100 * update


# -- A training run on disk, and its curve.


def write_checkpoint(
    path: Path, network: nn.Module, optimiser: torch.optim.Optimizer, story: Mapping[str, Any]
) -> None:
    """Write a network, its optimiser, and a story of plain values and tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "story": story}
    torch.save(saved, path)


def read_checkpoint(path: Path, network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Fill a network and its optimiser from a checkpoint; return the story."""
    try:
        saved = torch.load(path, weights_only=True)
        network.load_state_dict(saved["network"])
        optimiser.load_state_dict(saved["optimiser"])
        story: dict[str, Any] = saved["story"]
    except (OSError, EOFError, UnpicklingError, RuntimeError, LookupError, TypeError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise DataError(f"{path.name} is no training run of this kind ({text}); name another file") from None
    return story


def save_run(path: Path, trainer: PpoTrainer, curve: list[Progress]) -> None:
    """Write what a run needs to resume: network, optimiser, and curve."""
    story = {"update": trainer.update_number, "scale": trainer.scale, "curve": msgspec.to_builtins(curve)}
    write_checkpoint(path, trainer.learner.network, trainer.optimiser, story)


def resume_run(path: Path, trainer: PpoTrainer) -> list[Progress]:
    """Bring a trainer to where a saved run stopped, and return the curve so far."""
    story = read_checkpoint(path, trainer.learner.network, trainer.optimiser)
    trainer.resume(story["update"], story["scale"])
    return [Progress(**row) for row in story["curve"]]


def plot_curve(curve: Sequence[Progress], title: str, path: Path) -> None:
    """Plot the training curve, one panel per figure."""
    series = {
        "reward": [point.reward for point in curve],
        "accuracy prior": [point.accuracy for point in curve],
        "block latency, s": [point.latency_s for point in curve],
        "entropy": [point.entropy for point in curve],
    }
    plt = pyplot()
    figure, panels = plt.subplots(1, len(series), figsize=(4 * len(series), 3.2), layout="constrained")
    figure.suptitle(title)
    for panel, (name, values) in zip(panels, series.items(), strict=True):
        panel.plot(range(1, len(values) + 1), values, linewidth=1)
        panel.set(xlabel="update", title=name)
    figure.savefig(path, dpi=110)
    plt.close(figure)
