"""The plain case, ε = 0, against Stable-Baselines3's PPO on the same environment, buffer and weights."""

import numpy as np
import pytest
import torch

from slimsched.serving.learning.environment import RoutingEnv
from slimsched.serving.learning.ppo import Collected, UpdateOptions, log_probability, losses
from slimsched.serving.scenario.files import load_scenario

stable_baselines3 = pytest.importorskip(
    "stable_baselines3", reason="the independent reference is not installed"
)
torch.set_num_threads(1)


def test_likelihood_entropy_and_losses_equal_stable_baselines3() -> None:
    paper = load_scenario("paper", accuracy="paper").with_load(rate_per_s=2000.0, seconds=0.3)
    steps, c_h = 128, 0.01
    model = stable_baselines3.PPO(
        "MlpPolicy",
        RoutingEnv(paper),
        n_steps=steps,
        batch_size=steps,
        n_epochs=1,
        clip_range=0.2,
        vf_coef=0.5,
        ent_coef=c_h,
        seed=0,
        device="cpu",
    )
    model.learn(steps)  # one rollout and one update: the ratio is no longer 1
    buffer = model.rollout_buffer
    states = torch.tensor(buffer.observations.reshape(steps, -1))
    actions = torch.tensor(buffer.actions.reshape(steps, -1)).long()
    old = torch.tensor(buffer.log_probs.ravel())
    raw = torch.tensor(buffer.advantages.ravel())
    returns = torch.tensor(buffer.returns.ravel())
    with torch.no_grad():
        values, reference, entropy = model.policy.evaluate_actions(states, actions)
        logits = [head.logits for head in model.policy.get_distribution(states).distribution]
    none = torch.zeros(steps)
    assert torch.allclose(log_probability(logits, actions, none), reference, atol=1e-5)

    advantage = (raw - raw.mean()) / (raw.std() + 1e-8)  # normalised as Stable-Baselines3 does
    made = Collected(
        actions=actions, epsilon=none, old_log_probability=old, advantage=advantage, returns=returns
    )
    ours = losses(logits, values.ravel(), made, UpdateOptions(entropy_weight=c_h))
    model.train()  # a second pass over the same buffer logs the losses it saw before stepping
    logged = model.logger.name_to_value
    assert ours.entropy.item() == pytest.approx(float(entropy.mean()), rel=1e-5)
    assert -ours.surrogate.item() == pytest.approx(logged["train/policy_gradient_loss"], abs=1e-5)
    assert 2 * ours.value.item() == pytest.approx(
        logged["train/value_loss"], rel=1e-4
    )  # Stable-Baselines3 leaves out the ½
    assert np.isfinite(ours.total.item())
    model.env.close()
