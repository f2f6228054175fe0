"""Training on live servers: shadow mode first, then behind the guard."""

import numpy as np
import torch

from slimsched.serving.execution.live.event_loop import run
from slimsched.serving.execution.live.example_set import made_up_examples
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.learning.head_policy import HeadPolicy
from slimsched.serving.learning.live_training import LiveRound, train_live
from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer


def test_the_first_round_is_in_shadow_mode_and_the_next_is_learned_from() -> None:
    torch.manual_seed(0)
    scenario = load_scenario("laptop").with_load(rate_per_s=20.0, seconds=1.0)
    examples = [made_up_examples(model.spec) for model in scenario.cluster.models]
    policy, rounds = HeadPolicy(), list[LiveRound]()
    before = policy.weights()
    trainer = PpoTrainer(policy, scenario, PpoOptions(updates=1), seed=0)
    run(train_live(scenario, trainer, policy, examples, seed=0, report=rounds.append))
    shadow, learned = rounds
    assert shadow.shadow
    assert shadow.decisions == 0
    assert set(shadow.guard) <= {"shadow: same", "shadow: other"}
    assert learned.decisions > 0
    assert learned.guard["learned"] >= learned.decisions
    assert any(not np.array_equal(value, before[name]) for name, value in policy.weights().items())
