"""Training of the goal router: evolution of its few gains over randomly drawn clusters and loads.

Every generation draws new scenarios, runs all candidates on the same ones and ranks them (CMA-ES). The score
of a candidate is

    correct answers per arrived request / the fluid bound's − a · mean latency − b · p99

over a whole run, so it includes what a decision does to queues later, and how soon prices settle. The
scenarios of the published results (paper, edge-12, fleet-64, all traces) are never drawn.
"""

from collections.abc import Callable
from concurrent.futures import Executor

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.learning.evolution import Generation, evolve
from slimsched.serving.learning.random_scenario import random_scenario
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.router import Router
from slimsched.serving.routing.routers.goal import GoalParameters, GoalRouter

Values = NDArray[np.float64]

STEP_SIZES = {  # parameter: size of the first step in logarithm; the target belongs to the goal
    "crowd_per_s": 0.5,
    "wait": 0.5,
    "move": 0.5,
    "integral_per_s": 0.4,
}


class GoalTraining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to train, on how many scenarios, and the weights of the score."""

    generations: int = 14
    population: int = 8
    scenarios: int = 8
    requests: int = 12_000
    mean_weight_per_s: float = 0.05  # a
    p99_weight_per_s: float = 0.1  # b


def train_goal(
    like: Scenario,
    options: GoalTraining,
    *,
    seed: int,
    workers: int,
    report: Callable[[Generation], None],
    pool: Executor | None = None,
) -> GoalParameters:
    """Evolve the parameters, starting from the values set by hand."""
    trained = evolve(
        to_vector(GoalParameters()),
        list(STEP_SIZES.values()),
        draw=lambda rng: [int(rng.integers(2**31)) for _ in range(options.scenarios)],
        task=lambda vector, drawn: (like, options, drawn, from_vector(vector)),
        score=score,
        generations=options.generations,
        population=options.population,
        seed=seed,
        workers=workers,
        report=report,
        pool=pool,
    )
    return from_vector(trained)


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

    def make(spec: str, cluster: Cluster, seed: int, goal: Goal | None) -> Router:
        return GoalRouter(cluster, Goal(), parameters)

    row = simulate(scenario, "goal", seed=drawn, make=make).summary
    mean_s, p99_s = min(2.0, row.latency_mean_s), min(3.0, row.latency_p99_s)
    return row.bound_share - options.mean_weight_per_s * mean_s - options.p99_weight_per_s * p99_s
