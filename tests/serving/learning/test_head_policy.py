"""The policy that sees the head: its features, its likelihood, and that training helps on any cluster."""

from random import Random

import numpy as np
import pytest
import torch

from cluster import small_cluster
from slimsched.core.config import ConfigError
from slimsched.serving.gateway.goal import parse_goal
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.learning.policies import HeadPolicy
from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer, log_probability
from slimsched.serving.learning.rollout import Outcome, Rollout
from slimsched.serving.learning.worlds import Curriculum
from slimsched.serving.routers.learned import CONTEXT, POINT, SERVER, HeadFeatures, HeadPpoRouter
from slimsched.serving.scenario.files import load_scenario

torch.set_num_threads(1)
PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=3000.0)


def head(servers: int, *, source: int = -1, path: tuple[int, ...] = ()) -> Observation:
    """Sixteen requests that wait for the segment after a path."""
    seen = Observation(servers)
    seen.count, seen.path, seen.segment, seen.source = 16, path, len(path), source
    seen.previous = path[-1] if path else -1
    return seen


def new_policy(seed: int = 0) -> HeadPolicy:
    torch.manual_seed(seed)
    return HeadPolicy(hidden=8)


def test_features_say_where_the_input_lies_and_which_server_costs_least() -> None:
    features = HeadFeatures(PAPER.cluster)
    at_gateway = features.of_servers(head(3), 1.0)
    at_server = features.of_servers(head(3, source=1, path=(3,)), 1.0)
    assert at_gateway[1][:, 5].tolist() == [0, 0, 0]
    assert at_server[1][:, 5].tolist() == [0, 1, 0]
    assert at_server[1][:, 3].argmin() == 1  # the others would have to fetch it first
    assert at_server[0][1] == 0.25  # one of four segments is done


def test_one_policy_fits_any_number_of_servers_and_never_takes_a_dead_one() -> None:
    weights = new_policy().weights()
    for servers in (1, 2, 12, 64):
        cluster = small_cluster(tuple(1.0 + number % 3 for number in range(servers)), batch_limit=16)
        router = HeadPpoRouter(cluster, Random(0), weights, 2.0)
        seen = head(servers)
        if servers > 1:
            seen.set_alive(0, False)
        assert router.route(seen).server in seen.alive_ids


def test_without_training_it_stays_where_the_input_lies_and_narrows_as_queues_grow() -> None:
    router = HeadPpoRouter(PAPER.cluster, Random(0), new_policy().weights(), 2.0)
    seen = head(3, source=2, path=(3, 3, 3))
    seen.backlog_s[:] = 0.05
    assert router.route(seen).server == 2
    idle = router.route(seen).choice
    seen.outstanding[:], seen.backlog_s[:] = 2000, 2.0
    assert router.route(seen).choice < idle


def test_training_corrects_a_choice_only_as_far_as_waiting_is_at_stake() -> None:
    weights = new_policy().weights()
    for layer in (0, 2, 4):
        weights[f"choice.{layer}.weight"][:] = 0.0
        weights[f"choice.{layer}.bias"][:] = 0.0
    relative_work = CONTEXT + SERVER + 1
    weights["choice.0.weight"][0, relative_work] = weights["choice.2.weight"][0, 0] = 1.0
    weights["choice.4.weight"][0, 0] = -1000.0  # a policy that learned to be narrow
    router = HeadPpoRouter(PAPER.cluster, Random(0), weights, 2.0)
    seen = head(3, path=(3, 3, 3), source=2)
    seen.count = 1
    assert router.route(seen).choice > 0
    seen.outstanding[:] = 300
    assert router.route(seen).choice == 0


def test_a_longer_v_never_narrows() -> None:
    seen = head(3, path=(1,), source=0)
    seen.outstanding[:] = 150
    chosen = [
        HeadPpoRouter(PAPER.cluster, Random(0), new_policy().weights(), v).route(seen).choice
        for v in (0.1, 1.0, 10.0, 100.0)
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_a_block_pays_for_the_waiting_it_causes_and_not_for_the_waiting_it_meets() -> None:
    policy = new_policy()
    router = policy.router(PAPER.cluster, Random(0), 0.0)
    router.v = 2.0
    router.route(head(3, source=2, path=(3, 3, 3)))
    decision = (router.decisions or [])[0]
    outcome = Outcome(0, 0.7, 0.02, 0.0, 0.0, caused_s=0.01, met_s=0.015, moved_s=0.002)
    gain = decision.choices[decision.action[1], 0]
    wanted = gain - (0.02 - 0.015 + 0.01 + 0.002) / (2.0 * POINT)
    assert policy.rewards([decision], [outcome]).tolist() == pytest.approx([wanted])


def test_the_ratio_of_every_decision_begins_at_1_with_clusters_of_any_size() -> None:
    policy, decisions = new_policy(), []
    for servers in (2, 5):
        cluster = small_cluster((1.0,) * servers, batch_limit=16)
        router = policy.router(cluster, Random(servers), 0.2)
        for number in range(20):
            seen = head(servers, source=number % servers, path=(2,))
            seen.backlog_s[:] = np.linspace(0.0, 0.02, servers)
            seen.set_alive(0, number % 3 > 0)
            router.route(seen)
        decisions += router.decisions or []
    actions, forward = policy.batch(decisions)
    with torch.no_grad():
        logits, values = forward(torch.arange(len(decisions)))
    epsilon = torch.tensor([one.epsilon for one in decisions])
    now = log_probability(logits, actions, epsilon)
    assert now.tolist() == pytest.approx([one.log_probability for one in decisions], abs=1e-4)
    assert values.shape == (40,)


def test_training_runs_on_drawn_and_disturbed_clusters_and_repeats() -> None:
    options = PpoOptions(updates=2, clusters=2, window_s=0.1, look_windows=0)
    curriculum = Curriculum(
        scenario="paper",
        rates_per_s=(500.0, 1500.0),
        episode_s=0.3,
        drawn=0.5,
        disturbed=0.7,
        drawn_requests=200,
    )
    trainers = [PpoTrainer(new_policy(), curriculum.draw(PAPER), options, seed=5) for _ in range(2)]
    first, second = ([trainer.step() for _ in range(2)] for trainer in trainers)
    assert first == second
    assert first[0].decisions > 0


def test_in_training_too_v_follows_a_stated_goal() -> None:
    policy = HeadPolicy(hidden=8, goal=parse_goal("p99<=5ms"))
    router = policy.router(PAPER.cluster, Random(0), 0.0)
    drawn = router.v
    Rollout(PAPER.with_load(seconds=0.4), router, seed=0).advance(0.4)
    assert router.v < 0.9 * drawn
    paid = [one.context[0] for one in router.decisions or []]
    assert paid[0] == pytest.approx(np.log(drawn))
    assert paid[-1] < paid[0]


def test_weights_of_another_kind_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"no 'server.0.weight'.*slim router train"):
        HeadPpoRouter(PAPER.cluster, Random(0), {}, 1.0)
