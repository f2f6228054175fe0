"""What state (1) can reach at most: a search over constant policies, and over rules that see state (1).

python benchmarks/paper/yardstick.py search --budget 96 --workers 2     # writes yardstick.json
python benchmarks/paper/yardstick.py rewards --seeds 5 --workers 2      # who has which reward
python benchmarks/paper/yardstick.py curves --out docs/figures          # the curves of what is shipped

A constant policy is equations (2) to (4) with logits that depend on nothing. A rule adds what state (1)
tells: its servers' logits follow their queues, utilization and power, its widths' logits follow the FIFO and
the utilization. Both are searched by the cross-entropy method, with the reward (7) of a weighting as the
score, or for the signs of Table V: the most accuracy at 0.6 of random's latency, 0.55 of its energy and 75 %
answered.
"""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.clock import collector_paused
from slimsched.core.plots import pyplot
from slimsched.core.policy_file import read_policy
from slimsched.core.statistics import mean_of
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Router
from slimsched.serving.learning.rollout import OutcomeRecorder, RewardWeights
from slimsched.serving.routers.learned import PpoRouter, softmax
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.cluster import SimulatedCluster
from slimsched.serving.simulated.run import on_all_cores
from slimsched.serving.telemetry.meter import Meter

Vector = NDArray[np.float64]
SERVERS, CHOICES, GROUPS = 3, 4, 5
LOGITS = SERVERS + CHOICES + GROUPS
RULE = LOGITS + 3 + 3 * CHOICES
STATE = 2 + 3 * SERVERS
FULL = 16
"""With fewer requests in the FIFO, a block is not full."""

NEVER = -20.0
"""The logit of what is not chosen."""

FOUND = Path(__file__).with_name("yardstick.json")
"""What the searches found, and with which budget."""

WEIGHTINGS = {
    "efficient": RewardWeights(accuracy=0.05, energy_per_j=0.005, imbalance=0.01),
    "balanced": RewardWeights(
        latency_per_s=0.0003, energy_per_j=1e-6, imbalance=0.01, bonus=0.02, price=0.021
    ),
    "latency": RewardWeights(accuracy=0.0),
}
"""The three weightings of eq. (7). What is subtracted from the accuracy changes no order and is left out."""

TABLE_V = "table-v"
"""Not a reward: the most accuracy with the signs of Table V."""

FRESH_SEED = 7_000
"""The first seed of the search; comparisons and training use others."""


@lru_cache
def paper() -> Scenario:
    """Return the paper's cluster at the load of its tables."""
    return load_scenario("paper", accuracy="paper")


class Figures(Struct, frozen=True, kw_only=True):
    """What a policy did in one episode: the mean terms of its blocks, and what was answered."""

    terms: dict[str, float]
    accuracy: float
    latency_s: float
    energy_j: float
    answered: float
    blocks: int

    def reward(self, weights: RewardWeights) -> float:
        """Return the mean of (7) over blocks."""
        terms = self.terms
        return (
            weights.accuracy * (terms["accuracy"] - weights.centre)
            - weights.latency_per_s * terms["latency_s"]
            - weights.energy_per_j * terms["energy_j"]
            - weights.imbalance * terms["imbalance"]
            + weights.bonus * terms["fullness"]
            - weights.price * terms["cost"]
        )


def constant(logits: Sequence[float] | Vector) -> dict[str, Vector]:
    """Return the weights of the paper's policy with heads that see nothing."""
    sizes = {"input": (1, STATE), "hidden": (1, 1), "heads": (LOGITS, 1)}
    weights: dict[str, Vector] = {"state.mean": np.zeros(STATE), "state.deviation": np.ones(STATE)}
    for name, size in sizes.items():
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.zeros(size), np.zeros(size[0])
    weights["heads.bias"] = np.asarray(logits, dtype=float)[:LOGITS]
    return weights


class StateRule(PpoRouter):
    """Constant logits, plus what the queues, the load of devices and the FIFO of state (1) change in them."""

    def __init__(self, cluster: Cluster, rng: Random, vector: Vector) -> None:
        super().__init__(cluster, rng, constant(vector), epsilon=0.0)
        self._bias, self._by_server = vector[:LOGITS], vector[LOGITS : LOGITS + 3]
        self._by_width = vector[LOGITS + 3 :].reshape(3, CHOICES)

    def _logits(self, state: Vector) -> Vector:
        queued, power, busy = state[2::3], state[3::3] / 100.0, state[4::3]
        logits = self._bias.copy()
        logits[:SERVERS] += np.stack([queued, power, busy], axis=1) @ self._by_server
        seen = np.array([state[0] / 100.0 - 1.0, state[0] < FULL, busy.mean()])
        logits[SERVERS : SERVERS + CHOICES] += seen @ self._by_width
        return logits


def make(kind: str, vector: Sequence[float] | Vector, cluster: Cluster, rng: Random) -> PpoRouter:
    """Return a constant policy or a rule."""
    if kind == "constant":
        return PpoRouter(cluster, rng, constant(vector), epsilon=0.0)
    return StateRule(cluster, rng, np.asarray(vector))


def best(cluster: Cluster, rng: Random, weighting: str = "balanced", kind: str = "constant") -> PpoRouter:
    """Make what the search found: --routers benchmarks/paper/yardstick.py:best:weighting=latency."""
    return make(kind, found()[kind][weighting]["vector"], cluster, rng)


@lru_cache
def found() -> dict[str, dict[str, dict[str, Any]]]:
    """Read what the searches found: by kind and goal, the vector and the budget."""
    return json.loads(FOUND.read_text())  # type: ignore[no-any-return]


def figures_of(router: Router, scenario: Scenario, seed: int) -> Figures:
    """Run one episode from an empty cluster; blocks that are out at its end count with their time so far."""
    cluster, load = scenario.cluster, scenario.load
    gateway = Gateway(cluster, router, scenario.gateway)
    recorder, meter = OutcomeRecorder(cluster, gateway.seen), Meter(cluster.models, from_s=0.0)
    stream = load.stream(seed, cluster.models, shares=scenario.shares)
    simulated = SimulatedCluster(scenario, gateway, stream, seed=seed, observers=(recorder, meter))
    with collector_paused():
        simulated.run(load.seconds)
    recorder.give_up(load.seconds)
    row = meter.summary(
        router="",
        seconds=load.seconds,
        in_system=gateway.in_system,
        bound_accuracy=1.0,
        sure_bound_accuracy=0.0,
        wall_s=1.0,
        idle_w=0.0,
        energy_source="",
    )
    names = ("accuracy", "latency_s", "energy_j", "imbalance", "fullness", "cost")
    outcomes = recorder.outcomes
    return Figures(
        terms={name: float(np.mean([getattr(one, name) for one in outcomes])) for name in names},
        accuracy=row.accuracy,
        latency_s=row.latency_mean_s,
        energy_j=row.energy_paper_j,
        answered=row.completed / max(1, row.arrived),
        blocks=len(outcomes),
    )


@lru_cache
def random_figures(seconds: float, seed: int) -> Figures:
    """Return the figures of random routing."""
    scenario = paper().with_load(seconds=seconds)
    return figures_of(make_router("random", scenario.cluster, seed), scenario, seed)


def score_of(goal: str, figures: Figures, seconds: float, seed: int) -> float:
    """Return what a search maximises."""
    if goal != TABLE_V:
        return figures.reward(WEIGHTINGS[goal])
    theirs = random_figures(seconds, seed)
    missed = (
        max(0.0, figures.latency_s / theirs.latency_s - 0.58),
        max(0.0, figures.energy_j / theirs.energy_j - 0.53),
        max(0.0, 0.77 - figures.answered),
    )
    return figures.accuracy - 0.3 * sum(missed)


def score(task: tuple[str, str, Vector, float, int]) -> float:
    """Score one candidate in one episode."""
    kind, goal, vector, seconds, seed = task
    router = make(kind, vector, paper().cluster, Random(seed))
    return score_of(goal, figures_of(router, paper().with_load(seconds=seconds), seed), seconds, seed)


STARTS = {
    "efficient": (1.0, 0.0, 0.0, 0.0),
    "latency": (1.0, 0.0, 0.0, 0.0),
    "balanced": (0.0, 0.0, 1.0, 0.0),
    TABLE_V: (0.0, 0.6, 0.4, 0.0),
}
"""Where the search begins: shares of the widths; servers by their speed, and full groups."""


SHARES = ((0.6, 0.395, 0.005), (0.5, 0.495, 0.005))
"""Shares of the servers that the search tries at its end: the slow server left out."""


def start(goal: str, kind: str) -> Vector:
    """Return the mean of the first generation."""
    shares = np.array([0.38, 0.38, 0.24, *STARTS[goal], 0.0, 0.0, 0.0, 0.0, 1.0])
    return np.concatenate([np.log(shares + 0.002), np.zeros(0 if kind == "constant" else RULE - LOGITS)])


def search(
    kind: str, goal: str, *, budget: int, seconds: float, workers: int, population: int = 16
) -> Vector:
    """Search by the cross-entropy method; every generation runs on a seed of its own."""
    mean = start(goal, kind)
    deviation = np.full(len(mean), 0.5)
    rng = np.random.default_rng(0)
    for generation in range(budget // population):
        tried = mean + deviation * rng.standard_normal((population, len(mean)))
        tried[0] = mean
        tasks = [(kind, goal, one, seconds, FRESH_SEED + generation) for one in tried]
        scores = np.array(list(on_all_cores(score, tasks, workers=workers)))
        best = tried[np.argsort(-scores)[: population // 4]]
        mean = 0.2 * mean + 0.8 * best.mean(axis=0)
        deviation = np.maximum(0.05, 0.3 * deviation + 0.7 * best.std(axis=0))
        print(f"{kind}, {goal}: generation {generation}, best {scores.max():.5f}", file=sys.stderr)
    ends = [mean, polished(mean), polished(start(goal, kind))]
    ends += [polished(np.concatenate([np.log(shares), mean[SERVERS:]])) for shares in SHARES]
    seeds = [FRESH_SEED + 100 + number for number in range(2)]
    tasks = [(kind, goal, one, seconds, seed) for one in ends for seed in seeds]
    scores = np.array(list(on_all_cores(score, tasks, workers=workers))).reshape(len(ends), -1).mean(axis=1)
    return ends[int(scores.argmax())]


def polished(vector: Vector) -> Vector:
    """Return the same policy without what it chooses in less than one case of twenty."""
    logits = vector.copy()
    for head in (slice(0, SERVERS), slice(SERVERS, SERVERS + CHOICES), slice(SERVERS + CHOICES, LOGITS)):
        shares = softmax(logits[head])
        logits[head] = np.where(shares < 0.05, NEVER, np.log(shares))
    return logits


OTHERS = ("random", *(f"ppo:paper-{name}-0" for name in WEIGHTINGS))
"""Who is compared on every reward, beside the policies that were trained for it and what the search found."""


class Row(Struct, frozen=True, kw_only=True):
    """One router on the reward of one weighting: its mean over seeds, and how far above the constant."""

    weighting: str
    router: str
    reward: float
    above: float
    above_ci95: float
    figures: Figures


def _run(task: tuple[str, str, float, int]) -> Figures:
    router, goal, seconds, seed = task
    scenario = paper().with_load(seconds=seconds)
    made = (
        best(scenario.cluster, Random(seed), goal, router)
        if router in found()
        else make_router(router, scenario.cluster, seed)
    )
    return figures_of(made, scenario, seed)


def rewards(
    weighting: str,
    *,
    seconds: float,
    seed: int,
    seeds: int,
    workers: int,
    others: Sequence[str] = OTHERS,
) -> list[Row]:
    """Compare who there is on one reward, on the same seeds."""
    kinds = [kind for kind, goals in found().items() if weighting in goals]
    trained = [f"ppo:paper-{weighting}-{number}" for number in range(3)]
    routers = [*kinds, *dict.fromkeys([*trained, *others])]
    tasks = [(router, weighting, seconds, seed + number) for router in routers for number in range(seeds)]
    runs = iter(on_all_cores(_run, tasks, workers=workers))
    by_router = {router: [next(runs) for _ in range(seeds)] for router in routers}
    weights = WEIGHTINGS[weighting]
    base = np.array([one.reward(weights) for one in by_router["constant"]])
    rows = []
    for router, ones in by_router.items():
        scores = np.array([one.reward(weights) for one in ones])
        above = mean_of((scores - base).tolist())
        rows.append(
            Row(
                weighting=weighting,
                router=router,
                reward=float(scores.mean()),
                above=above.value,
                above_ci95=above.ci95,
                figures=mean_figures(ones),
            )
        )
    return rows


def mean_figures(ones: Sequence[Figures]) -> Figures:
    """Average what several episodes gave."""

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return Figures(
        terms={name: mean(one.terms[name] for one in ones) for name in ones[0].terms},
        accuracy=mean(one.accuracy for one in ones),
        latency_s=mean(one.latency_s for one in ones),
        energy_j=mean(one.energy_j for one in ones),
        answered=mean(one.answered for one in ones),
        blocks=round(mean(one.blocks for one in ones)),
    )


def draw_curves(folder: Path) -> Path:
    """Draw the training curves of the shipped policies: the reward by update, a panel per weighting."""
    shipped = files("slimsched.serving.routers") / "shipped"
    plt = pyplot()
    figure, panels = plt.subplots(
        1, len(WEIGHTINGS), figsize=(4 * len(WEIGHTINGS), 3.2), layout="constrained"
    )
    for panel, weighting in zip(panels, WEIGHTINGS, strict=True):
        for number in range(3):
            _, story = read_policy(str(shipped / f"ppo-paper-{weighting}-{number}.safetensors"))
            panel.plot([p[0] for p in story["curve"]], [p[1] for p in story["curve"]], label=f"seed {number}")
        panel.set(xlabel="update", ylabel="reward (7), mean of blocks", title=weighting)
        panel.legend()
    path = folder / "paper-training.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    """Search, compare or draw."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "rewards", "curves"))
    parser.add_argument("--kind", choices=("constant", "rule"), default="constant")
    parser.add_argument("--goals", default=",".join([*WEIGHTINGS, TABLE_V]))
    parser.add_argument("--budget", type=int, default=96, help="episodes of each search")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of an episode")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    chosen = parser.parse_args()
    goals = chosen.goals.split(",")
    if chosen.what == "curves":
        print(draw_curves(chosen.out))
        return
    if chosen.what == "search":
        vectors = found() if FOUND.exists() else {}
        for goal in goals:
            how = {"budget": chosen.budget, "seconds": chosen.seconds}
            vector = search(chosen.kind, goal, **how, workers=chosen.workers)
            vectors.setdefault(chosen.kind, {})[goal] = {"vector": vector.round(3).tolist(), **how}
        FOUND.write_text(json.dumps(vectors, indent=1) + "\n")
        return
    for weighting in (goal for goal in goals if goal in WEIGHTINGS):
        for row in rewards(
            weighting,
            seconds=chosen.seconds,
            seed=chosen.seed,
            seeds=chosen.seeds,
            workers=chosen.workers,
        ):
            did = row.figures
            print(
                f"{weighting:10} {row.router:22} {row.reward:9.5f} {row.above:+9.5f} ±{row.above_ci95:.5f}  "
                f"{100 * did.accuracy:.2f} % {did.latency_s:.3f} s {did.energy_j:.1f} J "
                f"{100 * did.answered:.1f} % answered",
                flush=True,
            )


if __name__ == "__main__":
    main()
