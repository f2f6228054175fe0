"""Tunes routers: the same number of tries for each, on seeds that no score uses, and the front they reach.

A router's knobs set where it stands between accuracy and latency, so one setting says little about it. A
search tries `budget` settings of each router and keeps those that no other setting of the same router beats
in both accuracy and p99. These are its front. Fronts are then scored on other seeds, at equal p99.

The goal router's few gains are found by evolution (CMA-ES) over randomly drawn clusters and loads. Every
generation draws new scenarios, runs all candidates on the same ones and ranks them by their mean score,

    correct answers per arrived request / the fluid bound's − a · mean latency − b · p99

over a whole run. So the score includes what a decision does to queues later, and how soon prices settle. The
scenarios of the published results (paper, edge-12, fleet-64, all traces) are never drawn.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import cma
import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import UnknownNameError
from slimsched.core.pareto import unbeaten
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Router
from slimsched.serving.learning.worlds import random_scenario
from slimsched.serving.routers.goal import GoalParameters, GoalRouter
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import on_all_cores, simulate

# -- Evolution of the goal router's gains.

Values = NDArray[np.float64]

STEP_SIZES = {"crowd_per_s": 0.5, "wait": 0.5, "move": 0.5, "integral_per_s": 0.4}
"""The parameters that are trained, and the size of the first step of each, in its logarithm."""


class GoalTraining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to train, on how many scenarios, and the weights of the score."""

    generations: int = 14
    population: int = 8
    scenarios: int = 8
    requests: int = 12_000
    mean_weight_per_s: float = 0.05  # a
    p99_weight_per_s: float = 0.1  # b


class Generation(Struct, frozen=True, kw_only=True):
    """One point of the curve: the best and the mean score."""

    number: int
    best: float
    mean: float


def train_goal(
    like: Scenario,
    options: GoalTraining,
    *,
    seed: int,
    workers: int,
    report: Callable[[Generation], None],
    pool: Executor | None = None,
) -> GoalParameters:
    """Evolve the parameters from the values set by hand, in `workers` processes or in `pool`.

    What is returned is the centre of the search, not a lucky candidate.
    """
    steps = list(STEP_SIZES.values())
    settings = {"popsize": options.population, "seed": seed + 1, "verbose": -9, "CMA_stds": steps}
    search = cma.CMAEvolutionStrategy(to_vector(GoalParameters()), 1.0, settings)
    rng = np.random.default_rng([seed, 7919])
    with pool or ProcessPoolExecutor(workers, mp_context=get_context("fork")) as running:
        for number in range(1, options.generations + 1):
            drawn = [int(rng.integers(2**31)) for _ in range(options.scenarios)]
            asked: list[Values] = search.ask()
            tasks = [(like, options, one, from_vector(vector)) for vector in asked for one in drawn]
            scores = np.array(list(running.map(score, tasks))).reshape(len(asked), len(drawn)).mean(axis=1)
            search.tell(asked, (-scores).tolist())
            report(Generation(number=number, best=float(scores.max()), mean=float(scores.mean())))
    return from_vector(np.array(search.result.xfavorite))


def to_vector(parameters: GoalParameters) -> Values:
    """Return the logarithms of the trained parameters."""
    return np.log([getattr(parameters, name) for name in STEP_SIZES])


def from_vector(vector: Values) -> GoalParameters:
    """Return the parameters for a vector of logarithms."""
    values = dict(zip(STEP_SIZES, np.exp(vector).tolist(), strict=True))
    return msgspec.structs.replace(GoalParameters(), **{k: float(f"{v:.3g}") for k, v in values.items()})


def score(task: tuple[Scenario, GoalTraining, int, GoalParameters]) -> float:
    """Run one candidate on one drawn scenario and return its score."""
    like, options, drawn, parameters = task
    scenario = random_scenario(like, np.random.default_rng(drawn), requests=options.requests)

    def goal(cluster: Cluster) -> Router:
        return GoalRouter(cluster, Goal(), parameters)

    row = simulate(scenario, goal, seed=drawn).summary
    mean_s, p99_s = min(2.0, row.latency_mean_s), min(3.0, row.latency_p99_s)
    return row.bound_share - options.mean_weight_per_s * mean_s - options.p99_weight_per_s * p99_s


# -- Search of a router's knobs.

KNOBS: dict[str, dict[str, tuple[float, float]]] = {
    "sed": {"share": (0.01, 0.6)},
    "jsq": {"share": (0.01, 0.6)},
    "slackfit": {"share": (0.03, 1.0)},
    "lp": {"margin": (1.0, 1.6), "every_s": (0.05, 1.0)},
    "drift-plus-penalty": {"v": (0.05, 4.0)},
    "warm:drift-plus-penalty": {"v": (0.05, 4.0)},
    "goal": {"target_s": (0.003, 0.05), "wait": (0.005, 0.05), "move": (0.02, 0.15)},
    "ppo": {"v": (0.3, 10.0)},
}
"""What may be tuned in each router, and its range; values are tried evenly in the logarithm."""

TUNING_SEED = 5_000
"""The first seed of tuning; scores use seeds far below."""


class Point(Struct, frozen=True, kw_only=True):
    """One run of one setting. `accuracy` counts requests without an answer as wrong."""

    router: str
    seed: int
    accuracy: float
    p99_s: float
    energy_j: float


class Try(Struct, frozen=True):
    """One run to make."""

    scenario: Scenario
    router: str
    seed: int


def settings(router: str, budget: int) -> list[str]:
    """List the settings to try: a grid for one knob; for several, the router's own and a Sobol sequence."""
    from scipy.stats.qmc import Sobol

    if router not in KNOBS:
        raise UnknownNameError("router to tune", router, list(KNOBS))
    knobs, own = KNOBS[router], []
    places = np.linspace(0.0, 1.0, budget)[:, None]
    if len(knobs) > 1:
        own = [router]
        places = Sobol(len(knobs), rng=0).random(2 ** int(np.ceil(np.log2(budget))))[: budget - 1]
    low, high = (np.log([bounds[end] for bounds in knobs.values()]) for end in (0, 1))
    return own + [
        router + "".join(f":{name}={value:.3g}" for name, value in zip(knobs, np.exp(row), strict=True))
        for row in low + places * (high - low)
    ]


def tune(
    scenario: Scenario,
    router: str,
    *,
    budget: int,
    workers: int,
    report: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Try the settings of a router and return its front, quickest first."""
    tries = [Try(scenario, setting, TUNING_SEED) for setting in settings(router, budget)]
    return unbeaten(run(tries, workers=workers, report=report), lambda one: (one.p99_s, one.accuracy))


def run(
    tries: Sequence[Try], *, workers: int, report: Callable[[Point], None] = lambda point: None
) -> list[Point]:
    """Make all runs, on several processes."""
    points: list[Point] = []
    for point in on_all_cores(run_one, tries, workers=workers):
        points.append(point)
        report(point)
    return points


def run_one(one: Try) -> Point:
    """Make one run."""
    row = simulate(one.scenario, one.router, seed=one.seed, bound_accuracy=1.0).summary
    answered = min(1.0, row.completed / max(1, row.arrived))
    return Point(
        router=one.router,
        seed=one.seed,
        accuracy=row.accuracy * answered,
        p99_s=row.latency_p99_s,
        energy_j=row.energy_j_per_request,
    )
