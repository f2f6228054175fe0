"""Trains and tunes the routers `aset` and `kais`, with the trainer, the curriculum and the reward of `ppo`.

    python benchmarks/rivals/learn.py train aset --accuracy paper --out aset.safetensors
    python benchmarks/rivals/learn.py tune aset kais --accuracy paper --budget 16

In `aset` one network picks a router by the state of the whole system; the reward of a decision is the mean
reward of the blocks that were sent under it. In `kais` one network says what each server keeps, another to
which server a block goes. A block counts as two decisions there: the slow one about the server it went to,
and its own; both get its reward.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from random import Random

import kais
import msgspec
import numpy as np
import torch
from aset import FAST, SYSTEM, AsetDecision, AsetRouter
from kais import KEPT, NODE, KaisDecision, KaisRouter
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.core.policy_file import write_policy
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning import tune as tuning
from slimsched.serving.learning.policies import WORTH_S, block_rewards, draw_worth_s, mlp
from slimsched.serving.learning.ppo import (
    HEAD_OPTIONS,
    IMPOSSIBLE,
    Forward,
    Learner,
    PpoTrainer,
    Progress,
)
from slimsched.serving.learning.rollout import Outcome
from slimsched.serving.learning.worlds import DISTURBED, curriculum_of
from slimsched.serving.routers.learned import CONTEXT, SERVER, server_prior
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario

Values = NDArray[np.float64]


class AsetNetwork(nn.Module):
    """Scores the routers to pick from, and estimates the value."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.policy = mlp(SYSTEM, hidden, FAST)
        self.value = mlp(SYSTEM, hidden)


class AsetPolicy(Learner):
    """Learns which router should decide; `v` is drawn anew for each episode."""

    network: AsetNetwork

    def __init__(self, hidden: int = 32) -> None:
        self.network = AsetNetwork(hidden)

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> AsetRouter:
        """Make a router for one episode, which collects decisions."""
        router = AsetRouter(cluster, rng, self.weights(), draw_worth_s(rng), epsilon=epsilon)
        router.decisions = []
        return router

    def rewards(self, decisions: Sequence[AsetDecision], outcomes: Sequence[Outcome]) -> Values:
        """Return, for each block, the mean reward of all blocks with the same slow decision."""
        log_v, gain = [one.state[0] for one in decisions], [one.gain for one in decisions]
        rewards = block_rewards(log_v, gain, outcomes)
        numbers = np.array([one.number for one in decisions], dtype=np.int64)
        _, which = np.unique(numbers, return_inverse=True)
        means: Values = np.bincount(which, rewards) / np.maximum(1, np.bincount(which))
        return means[which]

    def batch(self, decisions: Sequence[AsetDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        states = torch.tensor(np.array([one.state for one in decisions]), dtype=torch.float32)
        network = self.network

        def forward(some: Tensor) -> tuple[list[Tensor], Tensor]:
            rows = states[some]
            return [network.policy(rows)], network.value(rows).squeeze(1)

        return torch.tensor([[one.action] for one in decisions]), forward


Values = NDArray[np.float64]


class KaisNetwork(nn.Module):
    """Scores servers, scores what each keeps, and estimates the value from means over servers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.server = mlp(CONTEXT + SERVER, hidden)
        self.keep = mlp(kais.SYSTEM + 2 * NODE, hidden, len(KEPT))
        self.value = mlp(CONTEXT + kais.SYSTEM + NODE, hidden)


class KaisPolicy(Learner):
    """Learns both agents for any number of servers; `v` is drawn anew for each episode."""

    network: KaisNetwork

    def __init__(self, hidden: int = 32) -> None:
        self.network = KaisNetwork(hidden)

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> KaisRouter:
        """Make a router for one episode, which collects decisions."""
        router = KaisRouter(cluster, rng, self.weights(), draw_worth_s(rng), epsilon=epsilon)
        router.decisions = []
        return router

    def rewards(self, decisions: Sequence[KaisDecision], outcomes: Sequence[Outcome]) -> Values:
        """Return the reward of each block, by the v of its decision."""
        log_v, gain = [one.context[0] for one in decisions], [one.gain for one in decisions]
        return block_rewards(log_v, gain, outcomes)

    def batch(self, decisions: Sequence[KaisDecision]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        count = len(decisions)
        servers = np.zeros((count, max(len(one.servers) for one in decisions), SERVER), dtype=np.float32)
        is_server = np.zeros(servers.shape[:2], dtype=bool)
        slow = np.empty((count, kais.SYSTEM + 2 * NODE), dtype=np.float32)
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
        slow: Tensor,  # (rows, kais.SYSTEM + 2 NODE), of the server that was drawn
        is_server: Tensor,  # (rows, servers)
    ) -> tuple[list[Tensor], Tensor]:
        network = self.network
        around = context[:, None].expand(-1, servers.shape[1], -1)
        server = network.server(torch.cat([around, servers], dim=2)).squeeze(2) + server_prior(servers)
        system = slow[:, : kais.SYSTEM + NODE]  # nothing that depends on which server was drawn
        value = network.value(torch.cat([context, system], dim=1)).squeeze(1)
        return [server.masked_fill(~is_server, IMPOSSIBLE), network.keep(slow)], value


POLICIES = {"aset": AsetPolicy, "kais": KaisPolicy}
ROUTERS = {
    name: f"{os.path.relpath(Path(__file__).with_name(f'{name}.py'))}:{name.title()}" for name in POLICIES
}
"""How commands name these routers."""

SLOW_OPTIONS = replace(HEAD_OPTIONS, window_s=0.5, epsilon_max=0.2, learning_rate=1.5e-3)
"""Slow agents decide rarely: longer windows and more exploration than for `ppo`."""

KNOB = {"v": (0.3, 10.0)}
"""What is tuned, and its range."""


def train(
    kind: str, scenario: Scenario, *, updates: int, drawn: float, seed: int, out: Path
) -> list[Progress]:
    """Train a policy, write it with the story of its training, and return the curve."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    options = replace(SLOW_OPTIONS, updates=updates)
    curriculum = curriculum_of(scenario, episode_s=options.episode_s, drawn=drawn, disturbed=DISTURBED)
    learner = POLICIES[kind]()
    trainer = PpoTrainer(learner, curriculum.draw(scenario), options, seed=seed)
    curve: list[Progress] = []

    def note(point: Progress) -> None:
        curve.append(point)
        print(f"update {point.update}: reward {point.reward:.3f}", file=sys.stderr, flush=True)

    trainer.train(note)
    story = {
        "kind": kind,
        "accuracy": scenario.cluster.models[0].quality.name,
        "seed": seed,
        "date": date.today().isoformat(),
        "options": msgspec.to_builtins(options),
        "state": kind,
        "epsilon": options.epsilon_min,
        "curriculum": msgspec.to_builtins(curriculum),
        "worth_s": WORTH_S,
        "curve": [[p.update, round(p.reward, 4), round(p.accuracy, 4), round(p.latency_s, 4)] for p in curve],
    }
    write_policy(out, learner.weights(), story)
    return curve


def tune(kinds: Sequence[str], scenario: Scenario, *, budget: int, workers: int) -> None:
    """Print the front of each router: the settings that no other setting of it beats."""
    for kind in kinds:
        tuning.KNOBS[ROUTERS[kind]] = KNOB
        for point in tuning.tune(scenario, ROUTERS[kind], budget=budget, workers=workers):
            print(f"{point.router}: {100 * point.accuracy:.2f} %, p99 {1000 * point.p99_s:.0f} ms")


def main() -> int:
    """Read the command line, and train or tune."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--scenario", default="paper")
    shared.add_argument("--accuracy", default="measured", help="accuracy table: measured or paper")
    shared.add_argument("--rate", type=float, help="requests per second; the scenario's if left out")
    training = commands.add_parser("train", parents=[shared], help="train a policy in simulation")
    training.add_argument("kind", choices=POLICIES)
    training.add_argument("--updates", type=int, default=SLOW_OPTIONS.updates)
    training.add_argument("--drawn", type=float, default=0.5, help="share of training on drawn clusters")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--out", type=Path, required=True)
    searching = commands.add_parser("tune", parents=[shared], help="search v, and print the front")
    searching.add_argument("kinds", nargs="+", choices=POLICIES)
    searching.add_argument("--budget", type=int, default=16)
    searching.add_argument("--seconds", type=float, default=4.0)
    searching.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    scenario = load_scenario(given.scenario, accuracy=given.accuracy).with_load(rate_per_s=given.rate)
    if given.command == "train":
        train(given.kind, scenario, updates=given.updates, drawn=given.drawn, seed=given.seed, out=given.out)
        print(f"written: {given.out}")
    else:
        timed = scenario.with_load(seconds=given.seconds, warmup_s=given.seconds / 4)
        tune(given.kinds, timed, budget=given.budget, workers=given.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
