"""Tunes routers: the same number of tries for each, on seeds that no score uses, and the front they reach.

A router's knobs set where it stands between accuracy and latency, so one setting says little about it. A
search tries `budget` settings of each router and keeps those that no other setting of the same router beats
in both accuracy and p99. These are its front. Fronts are then scored on other seeds, at equal p99.

The goal router's few gains are found by evolution (CMA-ES) over randomly drawn clusters and loads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import cma
import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import UnknownNameError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Router
from slimsched.serving.learning.worlds import random_scenario
from slimsched.serving.routers.goal import GoalParameters, GoalRouter
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate

# -- Evolution of a few numbers (CMA-ES): all candidates of a generation meet the same newly drawn tasks.

Values = NDArray[np.float64]
Task = TypeVar("Task")


class Generation(Struct, frozen=True, kw_only=True):
    """One point of the curve: the best and the mean score, and the centre of the search distribution."""

    number: int
    best: float
    mean: float
    centre: Values


def evolve(
    start: Values,
    step_sizes: Sequence[float],
    *,
    draw: Callable[[np.random.Generator], Sequence[int]],
    task: Callable[[Values, int], Task],
    score: Callable[[Task], float],
    generations: int,
    population: int,
    seed: int,
    workers: int,
    report: Callable[[Generation], None],
    pool: Executor | None = None,
) -> Values:
    """Maximise the mean score over drawn tasks; return the centre of the search, not a lucky candidate.

    `draw` draws the tasks of a generation, `task` pairs a candidate with one, and `score` (picklable) runs
    the pair in one of `workers` processes, or in `pool`.
    """
    settings = {"popsize": population, "seed": seed + 1, "verbose": -9, "CMA_stds": list(step_sizes)}
    search = cma.CMAEvolutionStrategy(start, 1.0, settings)
    rng = np.random.default_rng([seed, 7919])
    with pool or ProcessPoolExecutor(workers, mp_context=get_context("fork")) as running:
        for number in range(1, generations + 1):
            drawn = list(draw(rng))
            asked: list[Values] = search.ask()
            tasks = [task(vector, one) for vector in asked for one in drawn]
            scores = np.array(list(running.map(score, tasks))).reshape(len(asked), len(drawn)).mean(axis=1)
            search.tell(asked, (-scores).tolist())
            centre = np.array(search.result.xfavorite)
            report(
                Generation(number=number, best=float(scores.max()), mean=float(scores.mean()), centre=centre)
            )
    return centre


# -- Training of the goal router: evolution of its few gains over randomly drawn clusters and loads.
#
# Every generation draws new scenarios, runs all candidates on the same ones and ranks them (CMA-ES). The
# score
# of a candidate is
#
#     correct answers per arrived request / the fluid bound's − a · mean latency − b · p99
#
# over a whole run, so it includes what a decision does to queues later, and how soon prices settle. The
# scenarios of the published results (paper, edge-12, fleet-64, all traces) are never drawn.

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
    knobs = KNOBS[router]
    own = [] if len(knobs) == 1 else [router]
    if not own:
        places = np.linspace(0.0, 1.0, budget)[:, None]
    else:
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
    return front(run(tries, workers=workers, report=report))


def run(
    tries: Sequence[Try], *, workers: int, report: Callable[[Point], None] = lambda point: None
) -> list[Point]:
    """Make all runs, on several processes."""
    points: list[Point] = []
    if workers <= 1:
        for one in tries:
            points.append(run_one(one))
            report(points[-1])
        return points
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for point in pool.map(run_one, tries):
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


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both accuracy and p99, quickest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.p99_s, -one.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best


def spread_out(points: Sequence[Point], count: int) -> list[Point]:
    """Return N points of a front, evenly spaced in the logarithm of p99."""
    if len(points) <= count:
        return list(points)
    place = np.log([one.p99_s for one in points])
    wanted = np.linspace(place[0], place[-1], count)
    chosen = {int(np.abs(place - at).argmin()) for at in wanted}
    return [points[number] for number in sorted(chosen)]
