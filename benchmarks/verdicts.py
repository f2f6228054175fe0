"""How often a verdict on a limit is wrong, whenever somebody looks: many short simulated runs.

    python benchmarks/verdicts.py --runs 300

Every run is looked at twice per second. Limits stand at some distances from the figure that all runs
together reach; a word counts as wrong if it is said at any look of a run.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from msgspec import Struct

from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster
from slimsched.serving.domain.request import alike
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import Answer, SegmentFinished
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.live_view import Watch

LOOK_S, DISTANCES = 0.5, (-0.1, -0.03, -0.003, 0.003, 0.03, 0.1)
PILOT = 60
"""Other runs, whose figures together are the truth."""

FIGURES = ("accuracy", "energy", "p99", "p95", "mean")


class Looker:
    """Follows a run with one watch for each distance, and notes at which looks each word was said."""

    def __init__(self, cluster: Cluster, goals: Sequence[Goal], begin_s: float) -> None:
        self._cluster, self._next_s, self._begin_s = cluster, begin_s + LOOK_S, begin_s
        self._watches = [Watch(goal, cluster, begin_s) for goal in goals]
        self.first_s: dict[tuple[int, str, str, str], float] = {}
        self.answers: list[tuple[int, float, float]] = []
        self.energy_j = 0.0

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry of the log."""
        if machine != GATEWAY_NAME or now_s < self._begin_s:
            return
        if isinstance(event, SegmentFinished):
            self.energy_j += event.energy_j
            for watch in self._watches:
                watch.drew(now_s, event.energy_j)
        for command in commands:
            if isinstance(command, Answer):
                for request, count in alike(command.requests):
                    accuracy = self._cluster.models[request.model].expected_accuracy(
                        request.path, request.trail
                    )
                    latency_s = now_s - request.arrival_s
                    self.answers.append((count, latency_s, accuracy))
                    for watch in self._watches:
                        watch.answered(now_s, request.model, count, latency_s, accuracy)
        if now_s >= self._next_s and self._watches:
            self._next_s += LOOK_S
            for place, watch in enumerate(self._watches):
                for over, verdicts in zip(("minute", "run"), watch.verdicts(now_s), strict=True):
                    for figure, one in zip(FIGURES, verdicts, strict=True):
                        self.first_s.setdefault((place, figure, over, one.word), now_s - self._begin_s)


def figures(answers: np.ndarray, energy_j: float) -> dict[str, float]:
    """Return what these answers reach."""
    count, latency_s, accuracy = answers.T
    order = np.argsort(latency_s)
    below = np.cumsum(count[order]) / count.sum()
    tail = {name: latency_s[order][np.searchsorted(below, q)] for name, q in (("p99", 0.99), ("p95", 0.95))}
    mean_s = (count * latency_s).sum() / count.sum()
    return {
        "accuracy": (count * accuracy).sum() / count.sum(),
        "energy": energy_j / count.sum(),
        **tail,
        "mean": mean_s,
    }


def goals_around(truth: dict[str, float]) -> list[Goal]:
    """Return a goal for each distance: accuracy differs by a tenth of it, as its figures differ less."""
    return [
        Goal(
            min_accuracy=truth["accuracy"] * (1.0 + 0.1 * distance),
            energy_j=truth["energy"] * (1.0 + distance),
            p99_s=truth["p99"] * (1.0 + distance),
            p95_s=truth["p95"] * (1.0 + distance),
            mean_s=truth["mean"] * (1.0 + distance),
        )
        for distance in DISTANCES
    ]


def one_run(seed: int, options: argparse.Namespace, truth: dict[str, float] | None) -> Looker:
    scenario = load_scenario(options.scenario)
    scenario = scenario.with_load(
        rate_per_s=options.rate, seconds=options.seconds + options.warmup, arrivals="bursty"
    )
    goals = [] if truth is None else goals_around(truth)
    looker = Looker(scenario.cluster, goals, options.warmup)
    simulate(scenario, options.router, seed=seed, observers=[looker], bound_accuracy=1.0)
    return looker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--scenario", default="paper")
    parser.add_argument("--router", default="goal[accuracy>=75, p99<=60ms, min energy]")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers) as pool:
        pilot = list(pool.map(partial(one_run, options=options, truth=None), range(10_000, 10_000 + PILOT)))
        truth = figures(
            np.concatenate([np.array(one.answers) for one in pilot]), sum(one.energy_j for one in pilot)
        )
        print(
            f"figures of {PILOT} other runs:", {name: float(f"{value:.5g}") for name, value in truth.items()}
        )
        runs = list(pool.map(partial(one_run, options=options, truth=truth), range(options.runs)))
    print(
        f"{len(runs)} runs of {options.seconds:g} s; wrong at any look, and decided rightly at the end, in %"
    )
    for figure in FIGURES:
        for place, distance in enumerate(DISTANCES):
            is_kept = (distance > 0) != (figure == "accuracy")
            right, wrong = ("kept", "broken") if is_kept else ("broken", "kept")
            cells = []
            for over in ("minute", "run"):
                said = [
                    [(place, figure, over, word) in one.first_s for one in runs] for word in (wrong, right)
                ]
                when = [one.first_s.get((place, figure, over, right)) for one in runs]
                known = sorted(at_s for at_s in when if at_s is not None)
                middle = f"{known[len(known) // 2]:.1f} s" if len(known) > len(runs) / 2 else "–"
                cells.append(
                    f"{over}: {100 * np.mean(said[0]):4.1f} wrong {100 * np.mean(said[1]):5.1f} right, "
                    f"half by {middle}"
                )
            print(
                f"{figure:9} {100 * distance:+5.1f} % ({'kept' if is_kept else 'broken'})  "
                + "   ".join(cells)
            )


if __name__ == "__main__":
    main()
