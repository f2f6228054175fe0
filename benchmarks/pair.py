"""Is a family of two networks worth more than each alone? Bounds and `goal` at the same request rates.

    python benchmarks/pair.py [--scenarios paper,h200] [--loads 1,2,3.5] [--seeds 3] [--seconds 2]

A load is a share of what the cluster serves with SlimResNet's widest plan. For each model: the fluid bound,
the bound of routers that stop when sure, and what `goal` reaches in simulation, blind and when sure. Routers
choose by one half of the test images and are scored on the other. ± is half the 95 % interval over seeds.
"""

import argparse

from slimsched.kernel.statistics import mean_of
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum
from slimsched.serving.routing.sure_bound import sure_accuracy_at

MODELS = ("slimresnet", "slimvit", "slimpair")
ROUTERS = ("goal", "goal:sure=true")


def main() -> None:
    """Print a row per scenario, load and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default="paper,h200")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--loads", default="1,2,3.5")
    parser.add_argument("--seeds", type=int, default=3, help="0: bounds only")
    parser.add_argument("--seconds", type=float, default=2.0, help="after a warm-up of half of it")
    given = parser.parse_args()
    routers = given.routers.split(",") if given.seeds else []
    columns = ["cluster", "load", "requests/s", "model", "bound, %", "when sure, %"]
    columns += [f"`{router}`, % (p99, ms)" for router in routers]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in given.scenarios.split(","):
        alone = load_scenario(name, accuracy="measured", models=["slimresnet"]).cluster
        full_per_s = capacity_per_s(alone, alone.models[0].spec.widest)
        for load in map(float, given.loads.split(",")):
            for model in given.models.split(","):
                cells = row(name, model, load * full_per_s, routers, seeds=given.seeds, seconds=given.seconds)
                print(f"| {name} | {100 * load:.0f} % | {' | '.join(cells)} |", flush=True)


def row(
    name: str, model: str, rate_per_s: float, routers: list[str], *, seeds: int, seconds: float
) -> list[str]:
    """Return one model's cells."""
    scenario = load_scenario(name, accuracy="measured", models=[model])
    bound = fluid_optimum(scenario.cluster, rate_per_s).accuracy
    sure = sure_accuracy_at(scenario.cluster, rate_per_s, ())
    cells = [f"{rate_per_s:,.0f}", model, f"{100 * bound:.2f}", f"{100 * sure:.2f}"]
    busy = scenario.with_load(
        rate_per_s=rate_per_s, seconds=1.5 * seconds, warmup_s=0.5 * seconds, arrivals="poisson"
    )
    for router in routers:
        runs = [
            simulate(busy, router, seed=100 + seed, bound_accuracy=bound).summary for seed in range(seeds)
        ]
        right = mean_of([100 * run.accuracy for run in runs])
        p99_s = mean_of([run.latency_p99_s for run in runs]).value
        cells.append(f"{right.value:.2f} ± {right.ci95:.2f} ({1e3 * p99_s:.0f})")
    return cells


if __name__ == "__main__":
    main()
