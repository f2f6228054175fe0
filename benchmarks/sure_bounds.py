"""Simulate clusters with and without stopping when sure: shares of both bounds, energy per correct answer.

    python benchmarks/sure_bounds.py [--scenarios paper,edge-12,fleet-64] [--loads 1.5,2.5] [--seeds 5]

A load is a share of what the cluster serves with the widest plan. Accuracies are those measured on CIFAR-100;
routers choose by one half of the test images and are scored on the other. Runs last `--seconds` after the
warm-up. Prints a Markdown table; ± is half the 95 % interval over seeds.
"""

import argparse
import os

from slimsched.core.statistics import mean_of
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import Compared, compare

ROUTERS = ("goal", "goal:sure=true")


def row(name: str, load: float, rate_per_s: float, one: Compared) -> str:
    """One router's line of the table."""
    shares = [100 * run.bound_share for run in one.runs]
    sure = [100 * run.sure_bound_share for run in one.runs if run.sure_bound_share]
    energy = [
        1e3 * run.energy_j_per_request / run.accuracy for run in one.runs if run.accuracy and run.completed
    ]
    cells = [name, f"{100 * load:.0f} %", f"{rate_per_s:,.0f}", one.summary.router]
    accuracy = mean_of([100 * run.accuracy for run in one.runs])
    figures = (accuracy, mean_of(shares), mean_of(sure) if sure else None, mean_of(energy))
    cells += ["" if found is None else f"{found.value:.2f} ± {found.ci95:.2f}" for found in figures]
    cells.append(f"{1e3 * one.summary.latency_p99_s:.0f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run every scenario at every load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", default="paper,edge-12,fleet-64")
    parser.add_argument("--loads", default="1.5,2.5")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    given = parser.parse_args()
    print(
        "| cluster | load | requests/s | router | accuracy, % | of bound, % | of bound when sure, % "
        "| mJ per correct answer | p99, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.scenarios.split(","):
        scenario = load_scenario(name, accuracy="measured")
        for load in [float(text) for text in given.loads.split(",")]:
            rate = load * capacity_per_s(scenario.cluster, scenario.cluster.models[0].spec.widest)
            busy = scenario.with_load(
                rate_per_s=rate,
                seconds=given.warmup + given.seconds,
                warmup_s=given.warmup,
                arrivals="poisson",
            )
            found = compare(busy, ROUTERS, seed=given.seed, seeds=given.seeds, workers=os.cpu_count() or 1)
            for one in found:
                print(row(name, load, rate, one), flush=True)


if __name__ == "__main__":
    main()
