"""The paper's PPO, equation by equation, against values worked out by hand."""

from math import exp, log
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from cluster import small_cluster
from slimsched.core.config import ConfigError, DataError
from slimsched.core.policy_file import read_policy, write_policy
from slimsched.models.width import WIDTHS
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.learning.policies import PaperPolicy, PolicyNetwork
from slimsched.serving.learning.ppo import (
    IMPOSSIBLE,
    Collected,
    PpoOptions,
    PpoTrainer,
    advantages,
    epsilon_at,
    log_probability,
    losses,
    resume_run,
    save_run,
)
from slimsched.serving.learning.rollout import Outcome, RewardWeights, Rollout
from slimsched.serving.routers.learned import PpoRouter, state_of
from slimsched.serving.scenario.files import load_scenario

torch.set_num_threads(1)
PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=3000.0)
SMALL = PpoOptions(updates=2, clusters=2, window_s=0.1, episode_s=0.2, look_windows=1, minibatch=64)


def new_policy(weights: RewardWeights | None = None, seed: int = 0) -> PaperPolicy:
    """A small policy with state (1) for the paper's cluster."""
    torch.manual_seed(seed)
    return PaperPolicy(PAPER.cluster, weights or RewardWeights(), hidden=8)


LOGITS = [
    torch.log(torch.tensor([[0.7, 0.2, 0.1]])),
    torch.log(torch.tensor([[0.4, 0.6]])),
    torch.zeros(1, 2),
]
ACTION = torch.tensor([[0, 1, 0]])


def test_state_1_is_fifo_done_then_queue_power_utilization_of_each_server() -> None:
    seen = Observation(2)
    seen.fifo, seen.done = 3, 7
    seen.queued[:], seen.power_w[:], seen.utilization[:] = (1, 2), (100, 200), (0.3, 0.9)
    wanted = [3, log(8), log(2), 100, 0.3, log(3), 200, 0.9]
    assert state_of(seen).tolist() == pytest.approx(wanted)


def test_epsilon_5_falls_linearly_to_its_minimum() -> None:
    assert epsilon_at(0, 10, 0.1, 0.5) == 0.5
    assert epsilon_at(5, 10, 0.1, 0.5) == pytest.approx(0.3)
    assert epsilon_at(99, 10, 0.1, 0.5) == 0.1


def test_likelihood_6_mixes_epsilon_into_the_server_head_only() -> None:
    likelihood = log_probability(LOGITS, ACTION, torch.tensor([0.3]))
    assert likelihood.item() == pytest.approx(log(0.7 * 0.7 + 0.3 / 3) + log(0.6) + log(0.5))


def test_reward_7_term_by_term() -> None:
    outcome = Outcome(0, 0.75, 2.0, 300.0, 0.04, fullness=0.5, cost=0.2)
    weights = RewardWeights(
        accuracy=10, latency_per_s=0.5, energy_per_j=0.01, imbalance=5, bonus=0.25, price=0.5, centre=0.7
    )
    bonus = 0.25 / 2 - 0.5 * 0.2
    assert outcome.reward(weights) == pytest.approx(10 * 0.05 - 0.5 * 2 - 0.01 * 300 - 5 * 0.04 + bonus)


def test_the_price_in_b_t_is_for_device_time_and_a_full_block_at_the_widest_choice_pays_all_of_it() -> None:
    def costs(share: list[float]) -> set[float]:
        logits = np.log(np.array(share) + 1e-9)
        weights = new_policy().weights()
        weights["heads.weight"] *= 0.0
        weights["heads.bias"] = np.concatenate([np.zeros(3), logits, [-20.0] * 4, [0.0]])
        rollout = Rollout(
            PAPER.with_load(seconds=0.1), PpoRouter(PAPER.cluster, Random(0), weights, 0.0), seed=1
        )
        return {round(one.cost / one.fullness, 3) for one in rollout.advance(0.1)}

    assert costs([0, 0, 0, 1]) == {1.0}
    assert max(costs([1, 0, 0, 0])) < 0.2


def test_advantages_8_are_one_step_and_normalised() -> None:
    advantage = advantages(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.0, 1.0, 2.0]))
    raw = np.array([1.0, 1.0, 4.0])
    assert advantage.tolist() == pytest.approx(((raw - raw.mean()) / raw.std()).tolist(), abs=1e-5)


def test_losses_9_to_13_against_hand_computed_values() -> None:
    epsilon, options = torch.tensor([0.3]), PpoOptions(entropy_weight=0.01)
    now = log_probability(LOGITS, ACTION, epsilon)
    old = now - log(1.5)  # the ratio is 1.5, clipped at 1.2
    made = Collected(
        actions=ACTION,
        epsilon=epsilon,
        old_log_probability=old,
        advantage=torch.tensor([2.0]),
        returns=torch.tensor([1.0]),
    )
    loss = losses(LOGITS, torch.tensor([0.4]), made, options)
    entropy = -sum(p * log(p) for p in (0.7, 0.2, 0.1)) - 0.4 * log(0.4) - 0.6 * log(0.6) + log(2)
    assert loss.surrogate.item() == pytest.approx(1.2 * 2.0)
    assert loss.value.item() == pytest.approx(0.5 * 0.36)
    assert loss.entropy.item() == pytest.approx(entropy, rel=1e-5)
    assert loss.total.item() == pytest.approx(-2.4 + 0.5 * 0.18 - 0.01 * entropy, rel=1e-5)


def test_a_negative_advantage_is_not_clipped_from_above() -> None:
    epsilon = torch.tensor([0.0])
    old = log_probability(LOGITS, ACTION, epsilon) - log(1.5)
    one = torch.tensor([1.0])
    made = Collected(actions=ACTION, epsilon=epsilon, old_log_probability=old, advantage=-one, returns=one)
    loss = losses(LOGITS, one, made, PpoOptions())
    assert loss.surrogate.item() == pytest.approx(-1.5)


def test_numpy_inference_gives_the_likelihood_torch_gives() -> None:
    policy = new_policy()
    router = PpoRouter(PAPER.cluster, Random(0), policy.weights(), epsilon=0.2)
    router.decisions = []
    seen = Observation(3)
    seen.fifo, seen.utilization[:] = 4, (0.2, 0.5, 0.9)
    for _ in range(20):
        assert router.route(seen).choice in range(len(WIDTHS))
    states = torch.tensor(np.array([d.state for d in router.decisions]), dtype=torch.float32)
    actions = torch.tensor([d.action for d in router.decisions])
    with torch.no_grad():
        logits, _ = policy.network(states)
    likelihood = log_probability(logits, actions, torch.full((20,), 0.2))
    assert likelihood.tolist() == pytest.approx([d.log_probability for d in router.decisions], abs=1e-4)


def test_a_dead_server_is_never_drawn() -> None:
    router = PpoRouter(PAPER.cluster, Random(0), new_policy().weights(), epsilon=0.5)
    seen = Observation(3)
    seen.set_alive(1, False)
    assert {router.route(seen).server for _ in range(200)} == {0, 2}


def test_a_policy_for_other_servers_is_refused_with_a_remedy() -> None:
    weights = new_policy().weights()
    with pytest.raises(ConfigError, match=r"trained for 3 servers.*slim router train"):
        PpoRouter(small_cluster((1.0, 2.0), batch_limit=16), Random(0), weights, 0.0)


def test_training_is_repeatable_and_can_resume(tmp_path: Path) -> None:
    one, two, three = [PpoTrainer(new_policy(seed=3), PAPER, SMALL, seed=3) for _ in range(3)]
    first = [one.step() for _ in range(2)]
    assert first == [two.step() for _ in range(2)]
    save_run(tmp_path / "run.pt", one, first)
    assert resume_run(tmp_path / "run.pt", three) == first
    assert three.update_number == 2
    for name, value in three.learner.weights().items():
        assert np.allclose(value, one.learner.weights()[name]), name
    three.step()


def test_a_policy_survives_the_disk_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    weights = new_policy().weights()
    path = tmp_path / "policy.safetensors"
    write_policy(path, weights, {"epsilon": 0.02})
    read, metadata = read_policy(str(path))
    assert metadata["epsilon"] == 0.02
    assert np.allclose(read["heads.weight"], weights["heads.weight"], atol=1e-6)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"policy\.safetensors"):
        read_policy(str(path))


def test_training_finds_the_better_width_of_a_bandit() -> None:
    """With a reward for accuracy alone, a few updates make wide choices more likely than at the start."""
    options = PpoOptions(
        updates=12,
        clusters=1,
        window_s=0.2,
        episode_s=0.4,
        look_windows=1,
        learning_rate=3e-3,
        minibatch=128,
    )
    policy = new_policy(RewardWeights(accuracy=1.0, latency_per_s=0.0, centre=0.73))
    trainer = PpoTrainer(policy, PAPER, options, seed=0)
    curve = [trainer.step() for _ in range(options.updates)]
    assert curve[-1].accuracy > curve[0].accuracy + 0.003


def test_the_network_starts_as_random_routing_with_groups_in_proportion_to_their_size() -> None:
    (servers, widths, groups), _ = PolicyNetwork(11, (3, 4, 5), 16)(torch.randn(50, 11))
    for head in (servers, widths):
        assert float(head.detach().softmax(1).max()) < 1.2 / head.shape[1]
    mean = groups.detach().softmax(1).mean(dim=0)
    assert mean.tolist() == pytest.approx([size / 31 for size in (1, 2, 4, 8, 16)], rel=0.2)


def test_the_ratio_9_of_a_decision_begins_at_1_whatever_its_epsilon_and_however_late_it_is_scored() -> None:
    policy = new_policy()
    router = policy.router(PAPER.cluster, Random(0), 0.3)
    seen = Observation(3)
    for number in range(40):
        seen.fifo, router.epsilon = number, 0.3 if number < 20 else 0.1
        seen.set_alive(1, number % 2 == 0)
        router.route(seen)
    assert router.decisions is not None
    policy.look(router.decisions)
    router.use(policy.weights())
    router.decisions.clear()
    for number in range(40):
        seen.fifo, router.epsilon = number, 0.3 if number < 20 else 0.1
        seen.set_alive(1, number % 2 == 0)
        router.route(seen)
    actions, forward = policy.batch(router.decisions)
    with torch.no_grad():
        logits, _ = forward(torch.arange(40))
    epsilon = torch.tensor([decision.epsilon for decision in router.decisions])
    now = log_probability(logits, actions, epsilon)
    assert now.tolist() == pytest.approx([one.log_probability for one in router.decisions], abs=1e-4)


def test_a_server_that_is_down_has_no_share_of_epsilon() -> None:
    logits = [torch.tensor([[0.0, IMPOSSIBLE, 0.0]])]
    likelihood = log_probability(logits, torch.tensor([[0]]), torch.tensor([0.4]))
    assert exp(likelihood.item()) == pytest.approx(0.6 * 0.5 + 0.4 / 2)


def test_blocks_that_an_episode_leaves_unfinished_are_scored_when_it_ends() -> None:
    overloaded = load_scenario("paper", accuracy="paper").with_load(rate_per_s=20_000.0, seconds=0.5)
    router = new_policy().router(overloaded.cluster, Random(0), 0.0)
    rollout = Rollout(overloaded, router, seed=1)
    early = rollout.advance(0.4)
    late = rollout.advance(0.1)
    assert rollout.is_over
    assert router.decisions is not None
    assert sorted(one.decision for one in early + late) == list(range(len(router.decisions)))
    assert max(one.latency_s for one in late) > max(one.latency_s for one in early)
