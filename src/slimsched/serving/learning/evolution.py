"""Evolution of a few numbers (CMA-ES): all candidates of a generation meet the same newly drawn tasks."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import cma
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
