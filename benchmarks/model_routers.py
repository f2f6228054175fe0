"""Routers on a user's model, live on this machine: accuracy, latency and energy beside the fluid bound.

    python benchmarks/model_routers.py --model DIR [--config one-gpu] [--load 1.3]

The load is a multiple of what the widest plan can carry. Accuracy is that of the model's quality table: for a
model without labels, how often its answers agree with its own widest plan.
"""

import argparse
import asyncio
import json

from slimsched.serving.gateway.bounds import capacity_per_s, fluid_optimum
from slimsched.serving.live.sensors import open_nvml
from slimsched.serving.measure.examples import made_up_examples
from slimsched.serving.measure.live_runs import compare_live, in_turn
from slimsched.serving.scenario.files import load_scenario


def main() -> None:
    """Run every router on the same servers and arrivals; print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="slimresnet")
    parser.add_argument("--config", default="laptop")
    parser.add_argument("--routers", default="random,drift-plus-penalty,goal")
    parser.add_argument("--load", type=float, default=1.3)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    scenario = load_scenario(options.config, models=[options.model])
    model = scenario.cluster.models[0]
    widest_per_s = capacity_per_s(scenario.cluster, model.spec.widest)
    rate = options.load * widest_per_s
    scenario = scenario.with_load(rate_per_s=rate, seconds=options.seconds)
    bound = fluid_optimum(scenario.cluster, rate)
    print(
        f"{model.name}, quality: {model.quality.name}; {rate:,.0f} requests/s = {options.load:g} × what the "
        f"widest plan can carry; fluid bound {100 * bound.accuracy:.2f} %",
        flush=True,
    )
    rows = asyncio.run(
        compare_live(
            scenario,
            in_turn(options.routers.split(","), scenario, seed=0, rounds=1),
            [made_up_examples(model.spec, count=64)],
            meter=open_nvml(0),
            progress=lambda router: print(router, flush=True),
        )
    )
    for row in rows:
        one = row.summary
        shown = {
            "router": row.router,
            "quality_percent": round(100 * one.accuracy_prior, 2),
            "latency_mean_ms": round(1e3 * one.latency_mean_s, 1),
            "latency_p99_ms": round(1e3 * one.latency_p99_s, 1),
            "answered_meanwhile": round(row.answered_meanwhile / max(1, one.arrived), 3),
            "in_time": round(one.slo_attainment, 3),
            "energy_j_per_answer": round(row.energy_j / max(1, one.completed), 4),
            "utilization_var": one.gpu_var,
        }
        print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
