"""Serve CIFAR-100's test images live on two CPU cores, with and without stopping when sure, in turn.

    SLIM_DATA=data python benchmarks/stop_when_sure.py --loads 1.6,2,3,5 --rounds 3 --seconds 20

A load is a share of what the cluster serves at full width. Both routers get the same requests in the same
order, round by round, on the same server processes; the images are those that routers do not choose by.
Prints one row per load and router, with 95 % intervals over the rounds. The time of a device per answer
stands beside that of the widest plan, which `sed` serves in every round at nine tenths of its capacity.

Long runs can be taken in pieces, with other rounds each time, and shown together:

    python benchmarks/stop_when_sure.py --first 0 --rounds 2 --out one.json
    python benchmarks/stop_when_sure.py --first 2 --rounds 2 --out two.json
    python benchmarks/stop_when_sure.py --show one.json two.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from slimsched.cli.serving.scenario import examples_of
from slimsched.core.statistics import mean_of
from slimsched.serving.gateway.bounds import capacity_per_s, fluid_optimum
from slimsched.serving.live.wire import run
from slimsched.serving.measure.live_runs import LiveRow, Turn, compare_live
from slimsched.serving.options import SERVING
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario

ROUTERS = {"sure": f"{SERVING}:sure=true", "blind": SERVING}
FULL = "sed"
FULL_LOAD = 0.9
FULL_DEADLINE_S = 600.0  # far off: no reason to serve anything but the widest plan


def at(scenario: Scenario, load: float, seconds: float, deadline_s: float) -> Scenario:
    """Return the scenario at a share of its full-width capacity."""
    rate = load * capacity_per_s(scenario.cluster, scenario.cluster.models[0].spec.widest)
    return scenario.with_load(rate_per_s=rate, seconds=seconds, deadline_s=deadline_s)


def main() -> None:
    """Run all loads, rounds and routers, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="laptop")
    parser.add_argument("--loads", default="1.6,2,3,5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--deadline", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round: its seed")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--show", type=Path, nargs="+", default=(), help="measure nothing, show these")
    given = parser.parse_args()
    if given.show:
        for found in joined([json.loads(path.read_text()) for path in given.show]):
            show(found)
        return
    scenario = load_scenario(given.scenario)
    examples = examples_of(scenario.cluster.models, None)
    results = []
    for load in [float(text) for text in given.loads.split(",")]:
        rows: dict[str, list[LiveRow]] = {name: [] for name in (*ROUTERS, FULL)}
        busy = at(scenario, load, given.seconds, given.deadline)
        for number in range(given.first, given.first + given.rounds):
            names = list(ROUTERS) if number % 2 else list(ROUTERS)[::-1]
            turns = [Turn(ROUTERS[name], busy, number) for name in names]
            turns.append(Turn(FULL, at(scenario, FULL_LOAD, given.seconds, FULL_DEADLINE_S), number))
            work = compare_live(scenario, turns, examples, meter=None, progress=lambda _: None)
            for name, row in zip([*names, FULL], run(work), strict=True):
                rows[name].append(row)
        results.append(found := figures_of(scenario, load, busy.load.rate_per_s, rows))
        show(found)
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1))


def figures_of(
    scenario: Scenario, load: float, rate_per_s: float, rows: dict[str, list[LiveRow]]
) -> dict[str, Any]:
    """Return what one load gave: for each router, a list of every figure by round."""
    found: dict[str, Any] = {
        "load": load,
        "rate_per_s": rate_per_s,
        "bound": fluid_optimum(scenario.cluster, rate_per_s).accuracy,
        "sure_bound": fluid_optimum(scenario.cluster, rate_per_s, sure=True).accuracy,
    }
    for name, runs in rows.items():
        found[name] = {
            "accuracy": [row.accuracy_on_images or 0.0 for row in runs],
            "in_time": [row.summary.slo_attainment for row in runs],
            "p99_s": [row.summary.latency_p99_s for row in runs],
            "energy_j": [row.summary.energy_j_per_request for row in runs],
            "device_s": [row.summary.device_s_per_request for row in runs],
            "batch": [row.summary.batch_mean for row in runs],
        }
    return found


def joined(pieces: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Put the rounds of several runs together, load by load."""
    found: dict[float, dict[str, Any]] = {}
    for one in [one for piece in pieces for one in piece]:
        whole = found.setdefault(one["load"], one)
        if whole is not one:
            for name in (*ROUTERS, FULL):
                for figure, values in one[name].items():
                    whole[name][figure] += values
    return [found[load] for load in sorted(found)]


def show(found: dict[str, Any]) -> None:
    """Print what one load gave."""
    print(
        f"load {found['load']:g} ({found['rate_per_s']:.0f}/s): bound {100 * found['bound']:.2f} %, "
        f"when sure {100 * found['sure_bound']:.2f} %"
    )
    for name in (*ROUTERS, FULL):
        means = {figure: mean_of(values) for figure, values in found[name].items()}
        shares = zip(found[name]["device_s"], found[FULL]["device_s"], strict=True)
        share = mean_of([one / full for one, full in shares])
        print(
            f"  {name:6s} accuracy {100 * means['accuracy'].value:.2f} ± {100 * means['accuracy'].ci95:.2f}, "
            f"in time {100 * means['in_time'].value:.2f} %, p99 {1e3 * means['p99_s'].value:.0f} ms, "
            f"{1e3 * means['device_s'].value:.2f} ms of a device per answer, "
            f"{share.value:.3f} ± {share.ci95:.3f} of the widest plan's, {means['batch'].value:.1f} per batch"
        )
    sure, blind = found["sure"]["accuracy"], found["blind"]["accuracy"]
    gain = mean_of([100 * (one - other) for one, other in zip(sure, blind, strict=True)])
    print(f"  gain   {gain.value:+.2f} ± {gain.ci95:.2f} points in {len(sure)} rounds", flush=True)


if __name__ == "__main__":
    main()
