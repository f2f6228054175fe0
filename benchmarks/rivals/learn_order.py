"""Trains an order of waiting jobs by PPO: collect → advantages → update → report, with the losses of `ppo`.

    python benchmarks/rivals/learn_order.py --updates 30 --out my-order.json --resume my-run.pt
    slim jobs compare --policies dally,benchmarks/rivals/learned_order.py:Rl:my-order.json --arrivals batch

A decision gives one waiting job a shift. From then until the job is done it costs

    own delay     = time until it is done − ideal service it still needed
    others' delay = ∫ over its runs of  GPUs held / GPUs of the cluster · jobs waiting  dt

The second is what running now instead of later does to those who wait: in a backlog served at a fixed rate
the two together are the job's share in the sum of all completion times. So every decision has a cost of its
own, and a job gains nothing by pushing ahead of shorter ones. The return of a decision is its reward alone
(one-step, as eq. (8)):

    r = −(own delay + price · others' delay)

To shift all jobs alike changes nothing, so the price is set where the mean job gains nothing by a shift;
at the fluid price of 1 all jobs learn to push ahead. The value sees the service a job still needs, which
the order does not: it is a baseline of training only.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import msgspec
import numpy as np
import torch
from learned_order import SHIFTS, Features, LearnedOrder, write_order
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.cli.jobs.workload import read_cluster_named
from slimsched.core.config import ConfigError
from slimsched.jobs.domain import Job, Machine, fabric_named
from slimsched.jobs.scheduler.waiting import JobState
from slimsched.jobs.simulated.comparison import JobSetting, build, prepare
from slimsched.jobs.telemetry import JobHistory, histories
from slimsched.jobs.traces.jobs import generate_jobs
from slimsched.serving.learning.ppo import (
    Collected,
    Losses,
    UpdateOptions,
    advantages,
    learn,
    read_checkpoint,
    write_checkpoint,
)

Values = NDArray[np.float64]

SAVE_EVERY = 5
"""Updates between two saves of a run that can be resumed."""

KEEP_S = 14400.0
"""While exploring, a waiting job keeps its shift for this long: long enough to have an effect."""


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """One shift given to one job; `surprise` is how far it was from the mean of what could be drawn."""

    job_id: str
    at_s: float
    served_s: float
    features: Features
    action: int
    surprise: float
    log_probability: float


class ExploringOrder(LearnedOrder):
    """Draws shifts instead of taking their mean, and remembers its decisions."""

    def __init__(self, weights: Mapping[str, Values], rng: Generator) -> None:
        super().__init__(weights)
        self._rng = rng
        self.decisions: list[Decision] = []
        self._last: dict[str, tuple[float, int, int]] = {}  # job: when, at which stop, which shift

    def shift(self, job: JobState, features: Features, now_s: float) -> float:
        """A drawn shift; the same one while the job waits on, for a few hours."""
        at_s, stops, action = self._last.get(job.id, (0.0, -1, 0))
        if stops == job.preemptions and now_s - at_s < KEEP_S:
            return SHIFTS[action]
        probabilities = self.probabilities(features)
        action = int(np.searchsorted(probabilities.cumsum(), self._rng.random()).clip(0, len(SHIFTS) - 1))
        self._last[job.id] = (now_s, job.preemptions, action)
        self.decisions.append(
            Decision(
                job_id=job.id,
                at_s=now_s,
                served_s=job.served_s,
                features=features,
                action=action,
                surprise=float(SHIFTS[action] - probabilities @ self._shifts),
                log_probability=float(np.log(probabilities[action])),
            )
        )
        return SHIFTS[action]


class Episode(Struct, frozen=True, kw_only=True):
    """The decisions of a window, what each cost, and what only hindsight knows of it."""

    decisions: list[Decision]
    own_s: Values
    others_s: Values
    hindsight: Values


def run_episode(
    jobs: Sequence[Job], setting: JobSetting, weights: Mapping[str, Values], rng: Generator
) -> Episode:
    """Simulate prepared jobs under an exploring order."""
    order = ExploringOrder(weights, rng)
    by_job = histories(build(order, jobs, setting, 0).run())
    decisions = order.decisions
    own_s, others_s = delays_s(decisions, by_job, setting.topology.gpus)
    return Episode(
        decisions=decisions,
        own_s=own_s,
        others_s=others_s,
        hindsight=np.array([_hindsight(decision, by_job[decision.job_id].job) for decision in decisions]),
    )


def delays_s(
    decisions: Sequence[Decision], by_job: Mapping[str, JobHistory], gpus: int
) -> tuple[Values, Values]:
    """Own and others' delay after each decision."""
    times_s, waited_s = _waiting(by_job)
    own_s, others_s = np.empty(len(decisions)), np.empty(len(decisions))
    for i, decision in enumerate(decisions):
        history = by_job[decision.job_id]
        assert history.finished_s is not None
        needed_s = history.job.service_s - decision.served_s
        own_s[i] = max(0.0, history.finished_s - decision.at_s - needed_s)
        runs = [run for run in history.runs if run.start_s >= decision.at_s]
        ends = np.interp([run.end_s for run in runs], times_s, waited_s)
        starts = np.interp([run.start_s for run in runs], times_s, waited_s)
        others_s[i] = history.job.gpus / gpus * float((ends - starts).sum())
    return own_s, others_s


def _waiting(by_job: Mapping[str, JobHistory]) -> tuple[Values, Values]:
    """∫ jobs waiting dt, as corners of a line."""
    changes: list[tuple[float, int]] = []
    for history in by_job.values():
        since_s = history.submitted_s
        for run in history.runs:
            changes += [(since_s, 1), (run.start_s, -1)]
            since_s = run.end_s
    changes.sort()
    times_s = np.array([at_s for at_s, _ in changes])
    count = np.cumsum([change for _, change in changes])
    return times_s, np.concatenate([[0.0], np.cumsum(np.diff(times_s) * count[:-1])])


def _hindsight(decision: Decision, job: Job) -> tuple[float, float]:
    """What the value may know and the order may not: the service left, alone and by its GPUs."""
    left_s = job.service_s - decision.served_s
    return (float(np.log1p(left_s)) / 10.0, float(np.log1p(left_s * job.gpus)) / 12.0)


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


def save_training(path: Path, trainer: JobTrainer, curve: list[JobProgress]) -> None:
    """Write everything a run needs to go on."""
    ratio, best = trainer.best
    story = {
        "update": trainer.update_number,
        "best": ratio,
        "best_weights": {name: torch.tensor(value) for name, value in best.items()},
        "pull": trainer.pull.tolist(),
        "curve": msgspec.to_builtins(curve),
    }
    write_checkpoint(path, trainer.network, trainer.optimiser, story)


def resume_training(path: Path, trainer: JobTrainer) -> list[JobProgress]:
    """Bring a trainer to where a run stopped; returns the curve so far."""
    story = read_checkpoint(path, trainer.network, trainer.optimiser)
    best = {name: value.double().numpy().copy() for name, value in story["best_weights"].items()}
    trainer.best = (story["best"], best)
    trainer.pull = np.array(story["pull"])
    trainer.update_number = story["update"]
    return [JobProgress(**row) for row in story["curve"]]


def train(trainer: JobTrainer, out: Path, *, cluster: str, seed: int, resume: Path | None = None) -> float:
    """Do all updates that are left and write the best order; return its mean JCT over dally's."""
    torch.set_num_threads(1)
    curve = resume_training(resume, trainer) if resume is not None and resume.is_file() else []

    def updated(point: JobProgress) -> None:
        curve.append(point)
        best = f"best JCT {100 * trainer.best[0]:.1f} % of dally's"
        print(f"update {point.update}: reward {point.reward:.3f}, {best}", file=sys.stderr, flush=True)
        if resume is not None and (point.update % SAVE_EVERY == 0 or point.update == trainer.options.updates):
            save_training(resume, trainer, curve)

    trainer.train(updated)
    ratio, weights = trainer.best
    story = {
        "kind": "job-order",
        "cluster": cluster,
        "seed": seed,
        "date": date.today().isoformat(),
        "jct_ratio": round(ratio, 4),
        "options": msgspec.to_builtins(trainer.options),
        "curve": [[p.update, round(p.reward, 4), p.jct_ratio and round(p.jct_ratio, 4)] for p in curve],
    }
    write_order(out, weights, story)
    return ratio


def main() -> int:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", default="racks-512", help="a shipped cluster or a file")
    parser.add_argument(
        "--network", default="congested,oversubscribed,fast", help="of the training windows, in turn"
    )
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2000, help="jobs per training window")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("job-order.json"))
    parser.add_argument("--resume", type=Path, help="keep the run here, and go on with it if it exists")
    given = parser.parse_args()
    networks = tuple(given.network.split(","))
    for name in networks:
        fabric_named(name)
    topology = read_cluster_named(given.cluster)
    training = JobTraining(updates=given.updates, jobs=given.jobs, networks=networks)
    windows = generated_windows(topology.machines, topology.name, training)
    trainer = JobTrainer(windows, training, seed=given.seed)
    ratio = train(trainer, given.out, cluster=topology.name, seed=given.seed, resume=given.resume)
    print(f"mean JCT {100 * ratio:.1f} % of dally's on windows kept aside; written: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
