"""What stopping when sure gains at a given cost: chosen on one half of the test images, scored on the other.

    python benchmarks/sure_halves.py [--halves 20] [--scenario laptop] [--model slimvit]

Cost is device time by the profile of the scenario's first server, in widest plans. For each random half,
plans and policies are chosen at many prices by the table of that half, and counted on the other images.
Between two prices both are mixed. Prints means over the halves; ± is the standard deviation.
"""

import argparse

import numpy as np

from slimsched.serving.domain.model import ServedModel
from slimsched.serving.gateway.bounds import count_policy
from slimsched.serving.gateway.goal import PRICES, CostToGo
from slimsched.serving.scenario.files import load_scenario

COSTS = np.array([0.12, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50, 0.60, 0.70, 0.80])
GRID = np.linspace(0.115, 1.0, 400)


def curves(model: ServedModel, work: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return accuracy over GRID of the best plans, and of the best policies."""
    blind, sure = [], []
    cost_to_go = CostToGo(model, [work], [dict.fromkeys(work, 0.0)], sure=True)
    plain = CostToGo(model, [work], [dict.fromkeys(work, 0.0)])
    table = cost_to_go.escalation
    assert table is not None
    for price in PRICES[1:].tolist():
        plan = plain.course((), 0, price, 0.0, 0.0)
        point = sum(work[key] for key in model.legs(plan)), model.scored.accuracy(plan)
        blind.append(point)
        first = model.tree.index[cost_to_go.course((), 0, price, 0.0, 0.0)]
        if first in table.row:
            found = count_policy(model, table, cost_to_go.further(price, 0.0).plan[0], first)
            point = sum(share * work[key] for key, share in found.uses.items()), found.value
        else:
            leaf = model.tree.plans[first]
            point = sum(work[key] for key in model.legs(leaf)), model.scored.accuracy(leaf)
        sure.append(point)
    return tuple(np.interp(GRID, *np.array(sorted(points)).T) for points in (blind, sure))  # type: ignore[return-value]


def needed(curve: np.ndarray, accuracy: float) -> float:
    """Return the least cost at which a curve reaches an accuracy."""
    return float(GRID[min(int(np.searchsorted(np.maximum.accumulate(curve), accuracy)), len(GRID) - 1)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halves", type=int, default=20)
    parser.add_argument("--scenario", default="laptop")
    parser.add_argument("--model", default="slimresnet", help="a shipped model or a model folder")
    given = parser.parse_args()
    cluster = load_scenario(given.scenario, models=[given.model]).cluster
    model, rng = cluster.models[0], np.random.default_rng(0)
    full_s = float(cluster.plan_s(model, model.spec.widest)[0])
    work = {key: float(seconds[0]) / full_s for key, seconds in cluster.work_s.items()}
    rows, full, eighty = [], [], []
    for _ in range(given.halves):
        images = rng.permutation(model.measured.examples)
        one, other = np.sort(images[: len(images) // 2]), np.sort(images[len(images) // 2 :])
        model.quality, model.scored = model.measured.of(one), model.measured.of(other)
        blind, sure = curves(model, work)
        rows.append([np.interp(COSTS, GRID, blind), np.interp(COSTS, GRID, sure)])
        full.append(needed(sure, model.scored.accuracy(model.spec.widest) - 0.002))
        eighty.append((needed(blind, 0.80), needed(sure, 0.80)))
    table = 100 * np.array(rows)  # (halves, 2, costs)
    print("| cost | plans, % | stop when sure, % | gain, points |\n|---|---|---|---|")
    narrowest = sum(work[key] for key in model.legs(model.spec.narrowest))
    for at, cost in enumerate(COSTS):
        if cost < narrowest:
            continue
        blind, sure = table[:, 0, at], table[:, 1, at]
        gain = sure - blind
        print(
            f"| {cost:.2f} | {blind.mean():.2f} | {sure.mean():.2f} | {gain.mean():.2f} ± {gain.std():.2f} |"
        )
    print(
        f"\nfull width's accuracy less 0.2 points at {np.mean(full):.2f} of its cost "
        f"(median {np.median(full):.2f})"
    )
    plain, looked = np.array(eighty).T
    print(f"80 % at {looked.mean():.2f} instead of {plain.mean():.2f}: {np.mean(looked / plain):.2f} of it")


if __name__ == "__main__":
    main()
