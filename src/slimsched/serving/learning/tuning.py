"""Tunes routers: the same number of tries for each, on seeds that no score uses, and the front they reach.

A router's knobs set where it stands between accuracy and latency, so one setting says little about it. A
search tries `budget` settings of each router and keeps those that no other setting of the same router beats
in both accuracy and p99. These are its front. Fronts are then scored on other seeds, at equal p99.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from msgspec import Struct

from slimsched.core.config import UnknownNameError
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.simulation import simulate

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
