"""Train the paper's PPO router for a few updates and compare it with random routing.

This does twenty updates in short episodes. A real training run, `slim router train`, does over a hundred in
long ones.

python examples/06_train_a_router.py
"""

import torch

from slimsched import PaperPolicy, PpoOptions, PpoTrainer, RewardWeights, load_scenario, simulate

torch.set_num_threads(1)
scenario = load_scenario("paper").with_load(rate_per_s=9200.0, seconds=1.0)
reward = RewardWeights(accuracy=0.05, latency_per_s=1.0)  # eq. (7): latency counts most
policy = PaperPolicy(scenario.cluster, reward)  # state (1); HeadPolicy() sees more
options = PpoOptions(
    updates=20,
    clusters=2,
    window_s=0.15,
    episode_s=0.3,
    look_windows=2,
    epochs=6,
    minibatch=128,
    learning_rate=1e-2,
    epsilon_max=0.1,
)
trainer = PpoTrainer(policy, scenario, options, seed=0)
curve = []
trainer.train(curve.append)
print(f"mean reward: {curve[0].reward:.3f} at first, {curve[-1].reward:.3f} after {len(curve)} updates")

for router in ("random", policy.trained):
    row = simulate(scenario, router, seed=1).summary
    print(f"{row.router:8} mean latency {1e3 * row.latency_mean_s:4.0f} ms, accuracy {row.accuracy:.1%}")
