"""How long learned routers take to decide, and how fast they train.

    python benchmarks/router.py

The first table has the microseconds (p50 and p99) of `route` at 3, 12 and 64 servers. The head and the
servers change between decisions. The second table compares decisions per second in training: our PPO
(collecting and updating), Stable-Baselines3's PPO on the same scenario through `slimsched/Routing-v0`, and
that environment alone under random actions. They run one after the other on one thread.
"""

from time import perf_counter, process_time

import numpy as np
import torch
from wide_cluster import repeated

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.learning.environment import RoutingEnv
from slimsched.serving.learning.policies import HeadPolicy
from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario

SERVERS = (3, 12, 64)


def decision_us(cluster: Cluster, router: str, count: int = 4000) -> tuple[float, float]:
    """Return p50 and p99 of one decision; every tenth decision starts a new scheduling step."""
    made, seen = make_router(router, cluster, 0), Observation(len(cluster))
    rng, model = np.random.default_rng(0), cluster.models[0]
    seen.arrival_rate_per_s, seen.deadline_s = 3000.0 * len(cluster), 1e9
    times = []
    for number in range(count):
        segment = number % 4
        path = tuple(int(choice) for choice in rng.integers(4, size=segment))
        seen.segment, seen.path, seen.previous = segment, path, model.spec.previous(path)
        seen.choices = model.tree.after[path]
        seen.source, seen.count = int(rng.integers(len(cluster))) if segment else -1, 16
        seen.backlog_s[int(rng.integers(len(cluster)))] = rng.uniform(0.0, 0.05)
        seen.now_s = 0.005 * (number // 10)
        began_s = perf_counter()
        made.route(seen)
        times.append(1e6 * (perf_counter() - began_s))
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def training(scenario: Scenario) -> None:
    """Print the decisions per second of our PPO, of Stable-Baselines3's and of the bare environment."""
    from stable_baselines3 import PPO

    trainer = PpoTrainer(HeadPolicy(), scenario, PpoOptions(look_windows=0), seed=0)
    began_s, began_cpu_s, decisions = perf_counter(), process_time(), 0
    for _ in range(8):
        decisions += trainer.step().decisions
    ours, ours_cpu = decisions / (perf_counter() - began_s), decisions / (process_time() - began_cpu_s)

    steps = 2 * 2048
    model = PPO(
        "MlpPolicy", RoutingEnv(scenario), n_steps=2048, batch_size=512, n_epochs=3, seed=0, device="cpu"
    )
    began_s, began_cpu_s = perf_counter(), process_time()
    model.learn(steps)
    theirs, theirs_cpu = steps / (perf_counter() - began_s), steps / (process_time() - began_cpu_s)

    environment = RoutingEnv(scenario)
    environment.reset(seed=0)
    began_s, began_cpu_s = perf_counter(), process_time()
    for number in range(steps):
        over = environment.step(np.array([number % 3, number % 4, number % 5]))[3]
        if over:
            environment.reset()
    bare, bare_cpu = steps / (perf_counter() - began_s), steps / (process_time() - began_cpu_s)
    environment.close()
    print("decisions per second:          wall      CPU")
    print(f"our PPO, training          {ours:8,.0f} {ours_cpu:8,.0f}")
    print(f"Stable-Baselines3, training{theirs:8,.0f} {theirs_cpu:8,.0f}")
    print(f"environment, random actions{bare:8,.0f} {bare_cpu:8,.0f}")


def main() -> None:
    torch.set_num_threads(1)
    paper = load_scenario("paper", accuracy="paper").with_load(rate_per_s=4000.0)
    print("microseconds per decision, p50 / p99, by number of servers:")
    print(f"{'router':31}" + "".join(f"{servers:>16}" for servers in SERVERS))
    for router in (
        "drift-plus-penalty",
        "lp",
        "goal",
        "goal[accuracy>=75, min energy]",
        "ppo",
    ):
        cells = []
        for servers in SERVERS:
            p50, p99 = decision_us(repeated(paper.cluster, servers), router)
            cells.append(f"{p50:8.0f} / {p99:5.0f}")
        print(f"{router:31}" + "".join(cells))
    print()
    training(paper)


if __name__ == "__main__":
    main()
