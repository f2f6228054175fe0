"""aset and kais: a slow agent decides rarely, fast decisions follow it, and both learn by PPO."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cluster import small_cluster
from slimsched.core.config import ConfigError
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer, log_probability
from slimsched.serving.learning.rollout import Outcome
from slimsched.serving.routers.classic import DriftPlusPenaltyRouter
from slimsched.serving.routers.registry import follows_goal
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "rivals"))

import learn
from aset import DRIFT_V, EVERY_S, FAST, AsetRouter
from kais import KEPT, KaisRouter, kept_choices
from learn import AsetPolicy, KaisPolicy

RIVALS = Path(learn.__file__).parent
torch.set_num_threads(1)
PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=3000.0)
ALL = len(KEPT) - 1


def aset(seed: int = 0) -> AsetPolicy:
    torch.manual_seed(seed)
    return AsetPolicy(hidden=8)


def kais(seed: int = 0) -> KaisPolicy:
    torch.manual_seed(seed)
    return KaisPolicy(hidden=8)


def head(servers: int, now_s: float = 0.0, path: tuple[int, ...] = (2,)) -> Observation:
    """Sixteen requests that wait for the segment after a path; their inputs lie on the first server."""
    seen = Observation(servers)
    seen.now_s, seen.count, seen.path, seen.segment = now_s, 16, path, len(path)
    seen.source, seen.previous = 0, path[-1]
    return seen


def prefers(policy: AsetPolicy | KaisPolicy, net: str, action: int) -> dict[str, NDArray[np.float64]]:
    """Weights with which a slow agent always takes one action."""
    weights = policy.weights()
    weights[f"{net}.4.bias"][action] = 100.0
    return weights


def test_aset_routes_as_the_router_it_picked() -> None:
    router = AsetRouter(PAPER.cluster, Random(0), prefers(aset(), "policy", 1), 2.0)
    picked = DriftPlusPenaltyRouter(PAPER.cluster, Random(0), v=DRIFT_V[1])
    for backlog_s in (0.0, 0.02, 0.2, 2.0):
        seen = head(3)
        seen.backlog_s[:] = [backlog_s, 0.5 * backlog_s, 0.1]
        assert router.route(seen) == picked.route(seen)


def test_the_slow_agent_of_aset_keeps_its_pick_until_it_is_time() -> None:
    router = aset().router(PAPER.cluster, Random(0), 0.5)
    for number in range(100):
        router.route(head(3, now_s=number * EVERY_S / 9.5))
    assert router.decisions is not None
    assert len(router.decisions) == 100, "one for each block"
    assert len({one.number for one in router.decisions}) == 10
    assert len({one.action for one in router.decisions}) > 1


def test_all_blocks_of_a_slow_decision_get_its_mean_reward() -> None:
    policy = aset()
    router = policy.router(PAPER.cluster, Random(0), 0.0)
    for now_s in (0.0, 0.01, 1.0):
        router.route(head(3, now_s=now_s))
    outcomes = [Outcome(number, 0.7, latency_s, 0.0, 0.0) for number, latency_s in enumerate((0.3, 0.2, 0.1))]
    assert router.decisions is not None
    first, second, third = policy.rewards(router.decisions, outcomes).tolist()
    assert first == second < third


def test_a_server_of_kais_only_runs_choices_that_it_keeps() -> None:
    for kept, allowed in enumerate([{0, 1}, {1, 2}, {2, 3}, {0, 1, 2, 3}]):
        router = KaisRouter(PAPER.cluster, Random(0), prefers(kais(), "keep", kept), 2.0)
        chosen = set()
        for load in (0, 30, 100, 300, 3000):
            seen = head(3)
            seen.outstanding[:], seen.backlog_s[:] = load, 0.001 * load
            chosen.add(router.route(seen).choice)
        assert chosen <= allowed
    assert len(chosen) > 1, "one that keeps all narrows as queues grow"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_a_server_always_keeps_some_choice(count: int) -> None:
    flags = kept_choices(count)
    assert flags.shape == (count, len(KEPT))
    assert flags.any(axis=0).all()
    assert flags[:, ALL].all()


def test_one_policy_of_kais_fits_any_number_of_servers_and_never_takes_a_dead_one() -> None:
    weights = kais().weights()
    for servers in (1, 2, 12):
        cluster = small_cluster(tuple(1.0 + number % 3 for number in range(servers)), batch_limit=16)
        seen = head(servers)
        if servers > 1:
            seen.set_alive(0, False)
        assert KaisRouter(cluster, Random(0), weights, 2.0).route(seen).server in seen.alive_ids


@pytest.mark.parametrize("policy", [aset(), kais()])
def test_the_ratio_of_every_decision_begins_at_1(policy: AsetPolicy | KaisPolicy) -> None:
    decisions = []
    for servers in (2, 5):
        cluster = small_cluster((1.0,) * servers, batch_limit=16)
        router = policy.router(cluster, Random(servers), 0.2)
        for number in range(20):
            seen = head(servers, now_s=0.2 * number)
            seen.backlog_s[:] = np.linspace(0.0, 0.02, servers)
            seen.set_alive(0, number % 3 > 0)
            router.route(seen)
        decisions += list(router.decisions or [])
    actions, forward = policy.batch(decisions)  # type: ignore[arg-type]
    with torch.no_grad():
        logits, values = forward(torch.arange(len(decisions)))
    now = log_probability(logits, actions, torch.tensor([one.epsilon for one in decisions]))
    assert now.tolist() == pytest.approx([one.log_probability for one in decisions], abs=1e-4)
    assert values.shape == (40,)
    assert logits[0].shape[1] in (FAST, 5)


@pytest.mark.parametrize("make", [aset, kais])
def test_training_repeats(make: Callable[[int], AsetPolicy]) -> None:
    options = PpoOptions(updates=2, clusters=2, window_s=0.1, episode_s=0.3, look_windows=0)
    load = PAPER.with_load(rate_per_s=800.0)
    trainers = [PpoTrainer(make(5), load, options, seed=5) for _ in range(2)]
    first, second = ([trainer.step() for _ in range(2)] for trainer in trainers)
    assert first == second


@pytest.mark.parametrize(("kind", "name"), [(AsetRouter, "aset"), (KaisRouter, "kais")])
def test_the_weights_of_another_router_are_refused(kind: type[AsetRouter], name: str) -> None:
    with pytest.raises(ConfigError, match=f"no policy of the router {name}.*learn.py train {name}"):
        kind(PAPER.cluster, Random(0), {}, 1.0)


@pytest.mark.parametrize("kind", ["aset", "kais"])
def test_each_is_a_plugin_that_routes_as_the_others_do(kind: str) -> None:
    spec = f"{RIVALS / kind}.py:{kind.title()}:v=2"
    assert follows_goal(spec)
    row = simulate(PAPER.with_load(rate_per_s=400.0, seconds=1.0), spec, drain=True).summary
    assert row.completed == row.arrived > 300
    assert simulate(PAPER.with_load(rate_per_s=400.0, seconds=0.3), f"{spec}:shadow=true").summary.completed


@pytest.mark.parametrize("kind", ["aset", "kais"])
def test_what_was_trained_can_be_used(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    learn.train(kind, PAPER.with_load(rate_per_s=400.0), updates=1, drawn=0.0, seed=0, out=out)
    assert json.loads(out.with_suffix(".json").read_text())["state"] == kind
    spec = f"{RIVALS / kind}.py:{kind.title()}:{out}"
    assert simulate(PAPER.with_load(rate_per_s=400.0, seconds=0.3), spec).summary.completed > 0


def test_tuning_prints_the_front_of_a_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    learn.tune(["kais"], PAPER.with_load(rate_per_s=400.0, seconds=0.2), budget=2, workers=1)
    assert "kais.py:Kais:v=" in capsys.readouterr().out
