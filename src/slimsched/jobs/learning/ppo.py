"""PPO for the order of jobs: collect → advantages → update → report, with the losses of `kernel.ppo`.

The action is one shift for one waiting job; the return is its reward alone (one-step, as eq. (8)):

    r = −(own delay + price · others' delay)

To shift all jobs alike changes nothing, so the price is set where the mean job gains nothing by a shift;
at the fluid price of 1 all jobs learn to push ahead. The value sees the service a job still needs, which
the order does not: it is a baseline of training only.
"""

from collections.abc import Callable

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.topology import Machine
from slimsched.jobs.execution.simulated.comparison import JobSetting, build, prepare
from slimsched.jobs.learning.episode import Episode, run_episode
from slimsched.jobs.scheduling.policies.learned_order import SHIFTS, Features, LearnedOrder
from slimsched.jobs.telemetry.runs import histories
from slimsched.jobs.traces.generator import generate_jobs
from slimsched.kernel.errors import ConfigError
from slimsched.kernel.ppo import Collected, Losses, UpdateOptions, advantages, learn

Values = NDArray[np.float64]

HINDSIGHT = 2
UNIT_S = 14400.0
MOST = 10.0
FADING = 0.9
OUTLIER = 4.0
"""A decision counts for at most this many standard deviations: a few jobs wait for days."""
FAR = 10_000_000
"""Seeds of training windows begin here, far from those runs are compared on."""


class JobTraining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long and on what to train."""

    updates: int = 30
    windows: int = 4  # a batch of episodes
    jobs: int = 2000
    networks: tuple[str, ...] = ("congested", "oversubscribed", "fast")
    loads: tuple[float, ...] = (1.0, 1.3)  # of Poisson windows; every second window is a batch
    hidden: int = 32
    check_every: int = 5
    checks: int = 6  # windows the mean order is measured on
    ppo: UpdateOptions = UpdateOptions(
        learning_rate=1e-3, entropy_weight=0.003, minibatch=512, epochs=3, gradient_norm=0.5
    )


class JobProgress(Struct, frozen=True, kw_only=True):
    """What one update saw; `jct_ratio` is the mean order's JCT over dally's, where it was measured."""

    update: int
    decisions: int
    reward: float
    price: float
    entropy: float
    value_loss: float
    jct_ratio: float | None


class OrderNetwork(nn.Module):
    """π(shift | features), and beside it V(features, hindsight)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        features = len(Features._fields)
        self.input = nn.Linear(features, hidden)
        self.hidden = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, len(SHIFTS))
        self.value = nn.Sequential(
            nn.Linear(features + HINDSIGHT, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.value_head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head.weight)  # begin as dally: all shifts equally likely, their mean 0
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor, hindsight: Tensor) -> tuple[list[Tensor], Tensor]:
        x = torch.tanh(self.hidden(torch.tanh(self.input(features))))
        seen = self.value(torch.cat([features, hindsight], dim=1))
        return [self.head(x)], self.value_head(seen).squeeze(1)


Windows = Callable[[int], tuple[list[Job], JobSetting]]
"""The jobs and the setting of a seed."""


def generated_windows(machines: tuple[Machine, ...], cluster: str, options: JobTraining) -> Windows:
    """Windows of the generator fitted to Helios: batches and Poisson arrivals in turn, networks in turn."""

    def draw(seed: int) -> tuple[list[Job], JobSetting]:
        setting = JobSetting(
            machines=machines,
            cluster=cluster,
            network=options.networks[seed // 2 % len(options.networks)],
            arrivals=("batch", "poisson")[seed % 2],
            load=options.loads[seed // 2 % len(options.loads)],
        )
        gpus = setting.topology.gpus
        jobs = generate_jobs(options.jobs, np.random.default_rng(seed), largest=gpus)
        return prepare(jobs, setting, seed), setting

    return draw


class JobTrainer:
    """Trains an order on windows drawn anew for every update."""

    def __init__(self, windows: Windows, options: JobTraining, *, seed: int) -> None:
        self.options = options
        self._windows = windows
        self._seed = seed
        torch.manual_seed(seed)
        self.network = OrderNetwork(options.hidden)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=options.ppo.learning_rate)
        self.update_number = 0
        self.best: tuple[float, dict[str, Values]] = (1.0, self.weights())
        self.pull = np.zeros(2)  # covariance of own and of others' delay with the shift, fading
        self._dally_jct_s: list[float] = []

    @property
    def price(self) -> float:
        """What a second of others' delay counts, so that shifting everybody gains nothing."""
        own, others = self.pull
        return float(np.clip(-own / others, 1.0, MOST)) if others < 0.0 < own else 1.0

    def train(self, report: Callable[[JobProgress], None]) -> None:
        """All updates that are still to come."""
        while self.update_number < self.options.updates:
            report(self.step())

    def step(self) -> JobProgress:
        """Some windows and one update."""
        options = self.options
        episodes = self._collect()
        rewards = self._rewards(episodes)
        last = self._update(episodes, rewards)
        self.update_number += 1
        ratio = None
        if self.update_number % options.check_every == 0 or self.update_number == options.updates:
            ratio = self.check()
            if ratio < self.best[0]:
                self.best = (ratio, self.weights())
        return JobProgress(
            update=self.update_number,
            decisions=sum(len(episode.decisions) for episode in episodes),
            reward=float(rewards.mean()),
            price=self.price,
            entropy=float(last.entropy.detach()),
            value_loss=float(last.value.detach()),
            jct_ratio=ratio,
        )

    def check(self) -> float:
        """Mean JCT of the mean order over dally's, on windows that are never trained on."""
        seeds = [FAR + 1_000_000 * (self._seed + 1) - 1 - i for i in range(self.options.checks)]
        if not self._dally_jct_s:
            self._dally_jct_s = [self._jct_s(seed, None) for seed in seeds]
        weights = self.weights()
        jct_s = np.array([self._jct_s(seed, weights) for seed in seeds])
        return float(np.exp(np.mean(np.log(jct_s / self._dally_jct_s))))

    def weights(self) -> dict[str, Values]:
        """What a LearnedOrder needs."""
        return {
            name: value.detach().double().numpy().copy()
            for name, value in self.network.state_dict().items()
            if not name.startswith("value")
        }

    def _jct_s(self, seed: int, weights: dict[str, Values] | None) -> float:
        jobs, setting = self._windows(seed)
        simulation = build("dally" if weights is None else LearnedOrder(weights), jobs, setting, 0)
        return float(np.mean([history.jct_s for history in histories(simulation.run()).values()]))

    def _collect(self) -> list[Episode]:
        """Windows under the present order; seeds follow from the update, so a resumed run goes on alike."""
        weights, episodes = self.weights(), []
        first = FAR + 1_000_000 * self._seed + self.update_number * self.options.windows
        for seed in range(first, first + self.options.windows):
            jobs, setting = self._windows(seed)
            episode = run_episode(jobs, setting, weights, np.random.default_rng([seed, 1]))
            if episode.decisions:
                episodes.append(episode)
        if not episodes:
            raise ConfigError(
                "no job ever waited in the training windows, so there was no order to learn; "
                "give more jobs (--jobs) or a smaller cluster (--cluster)"
            )
        return episodes

    def _rewards(self, episodes: list[Episode]) -> Values:
        """Reward of every decision, at a price that follows what shifts were seen to do."""
        own_s = np.concatenate([episode.own_s for episode in episodes])
        others_s = np.concatenate([episode.others_s for episode in episodes])
        shifts = np.array([decision.surprise for episode in episodes for decision in episode.decisions])
        self.pull = FADING * self.pull + np.array([shifts @ own_s, shifts @ others_s]) / len(shifts)
        return -(own_s + self.price * others_s) / UNIT_S

    def _update(self, episodes: list[Episode], rewards: Values) -> Losses:
        """K epochs of minibatches over all decisions."""
        network = self.network
        decisions = [decision for episode in episodes for decision in episode.decisions]
        features = torch.tensor([decision.features for decision in decisions], dtype=torch.float32)
        hindsight = torch.tensor(
            np.concatenate([episode.hindsight for episode in episodes]), dtype=torch.float32
        )
        returns = torch.tensor(rewards, dtype=torch.float32)
        with torch.no_grad():
            advantage = advantages(returns, network(features, hindsight)[1]).clamp(-OUTLIER, OUTLIER)
        collected = Collected(
            actions=torch.tensor([[decision.action] for decision in decisions]),
            epsilon=torch.zeros(len(decisions)),
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
            self.options.ppo,
            shuffle=torch.Generator().manual_seed(self._seed + self.update_number),
            forward=lambda some: network(features[some], hindsight[some]),
        )
