"""The Gymnasium environment: the checker passes, seeds repeat, nothing is left running."""

import copy
import pickle
import subprocess
import sys
from threading import active_count

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from slimsched.serving.learning.environment import ROUTING, RoutingEnv
from slimsched.serving.learning.rollout import RewardWeights
from slimsched.serving.learning.worlds import random_scenario
from slimsched.serving.routers.classic import group_sizes
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=2000.0, seconds=0.1)


def test_gymnasiums_checker_accepts_the_environment() -> None:
    environment = gymnasium.make(ROUTING, scenario=PAPER)
    check_env(environment.unwrapped, skip_render_check=True)
    environment.close()


def play(environment: RoutingEnv, seed: int) -> list[float]:
    rng, rewards = np.random.default_rng(seed), []
    environment.reset(seed=seed)
    over = False
    while not over:
        action = [rng.integers(n) for n in environment.action_space.nvec]  # type: ignore[attr-defined]
        _, reward, _, over, _ = environment.step(np.array(action))
        rewards.append(reward)
    return rewards


def test_the_same_seed_and_actions_give_the_same_rewards() -> None:
    environment = RoutingEnv(PAPER)
    assert play(environment, 3) == play(environment, 3)
    assert play(environment, 3) != play(environment, 4)


def test_an_abandoned_episode_leaves_no_thread_behind() -> None:
    before = active_count()
    environment = RoutingEnv(PAPER)
    environment.reset(seed=0)
    environment.step(environment.action_space.sample())
    environment.reset(seed=1)
    environment.close()
    assert active_count() == before


def test_step_rewards_add_up_to_the_rewards_of_all_blocks() -> None:
    environment = RoutingEnv(PAPER, weights=RewardWeights(accuracy=0.0, latency_per_s=0.0, bonus=16.0))
    rewards = play(environment, 0)
    answered = sum(rewards)  # one for every request of every block
    assert answered == round(answered)
    assert answered > 0.5 * 4 * 2000 * 0.1


def test_drawn_scenarios_differ_and_can_be_simulated() -> None:
    rng = np.random.default_rng(0)
    drawn = [random_scenario(PAPER, rng, requests=300) for _ in range(4)]
    assert len({scenario.load.rate_per_s for scenario in drawn}) == 4
    for scenario in drawn:
        assert simulate(scenario, "sed", bound_accuracy=1.0).summary.lost == 0


def test_the_action_space_is_server_by_width_by_group() -> None:
    environment = RoutingEnv(PAPER)
    assert environment.action_space.nvec.tolist() == [3, 4, len(group_sizes(16))]  # type: ignore[attr-defined]


def test_gymnasium_knows_the_environment_by_its_name() -> None:
    program = """
import gymnasium
import slimsched
environment = gymnasium.make("slimsched/Routing-v0")
state, told = environment.reset(seed=1)
assert environment.observation_space.contains(state), state
assert environment.observation_space.is_bounded()
environment.close()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=100)


def test_a_copy_plays_as_the_original_does() -> None:
    environment = RoutingEnv(PAPER, weights=RewardWeights(accuracy=0.0, latency_per_s=0.0, bonus=16.0))
    rewards = play(environment, 3)
    environment.reset(seed=1)
    for copied in (copy.deepcopy(environment), pickle.loads(pickle.dumps(environment))):
        assert play(copied, 3) == rewards
    environment.close()
