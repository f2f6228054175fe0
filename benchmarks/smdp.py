"""How far Algorithm 1 is from the best batching rule for one server, and what `batching = "smdp"` saves.

    python benchmarks/smdp.py [--scenario paper] [--server 0] [--plan widest] [--loads 0.1,0.3,0.5,0.7,0.9]

One instance per segment, whole plans, Poisson arrivals, batch times by profile without noise. A load is a
share of what the best batch size serves. κ is how many seconds of waiting a joule is worth. Figures are mean
latency in ms, energy per request in mJ, and mean batch size. "greedy" (Algorithm 1) and "best" are computed:
the optimum of the semi-Markov decision process of `scheduling/batch_queue.py`, which knows the rate. "run"
means the local scheduler itself on a simulated device, on the same arrivals; there `smdp` measures the rate.
"Saved" compares mean latency plus κ times energy. Prints a Markdown table.
"""

import argparse
from collections.abc import Sequence
from math import inf

import numpy as np
from msgspec.structs import replace

from slimsched.kernel.timeline import Timeline
from slimsched.serving.domain.block import Block, block_of
from slimsched.serving.domain.key import Key, onward
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Request
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.execution.simulated.server import SimulatedServer
from slimsched.serving.routing.events import SegmentFinished
from slimsched.serving.scheduling.batch_queue import BatchQueue, Cost, least_to_start
from slimsched.serving.scheduling.options import SchedulerOptions


class Ended:
    """Takes what a server reports: when each request ended, and the energy of its batches."""

    def __init__(self, count: int) -> None:
        self.end_s = np.full(count, np.nan)
        self.energy_j = 0.0
        self.batches = 0

    def segment_finished(self, event: SegmentFinished) -> None:
        for block in event.blocks:
            self.end_s[[request.id for request in block.requests]] = event.finished_s
        self.energy_j += event.energy_j
        self.batches += 1

    def block_dropped(self, server: int, block: Block, reason: str) -> None:
        raise AssertionError("nothing is dropped: there are no deadlines")

    def busy_changed(self, server: int) -> None:
        pass


def simulate(
    key: Key, profile: Profile, model: ServedModel, options: SchedulerOptions, arrivals_s: Sequence[float]
) -> Cost:
    """Run the local scheduler on these arrivals, and return what it costs per request."""
    timeline, ended = Timeline(), Ended(len(arrivals_s))
    server = SimulatedServer(
        index=0,
        name="server",
        profile=profile,
        models=[model],
        options=options,
        timeline=timeline,
        upstream=ended,
        observers=[],
    )
    server.start(warm=True)
    for number, at_s in enumerate(arrivals_s):
        request = Request(id=number, arrival_s=at_s)
        timeline.at(at_s, server.receive, block_of(number, key, (request,)))
    while timeline.next_s() < inf:
        timeline.advance()
    count = len(arrivals_s)
    return Cost(
        latency_s=float(np.mean(ended.end_s - np.array(arrivals_s))),
        energy_j=ended.energy_j / count,
        batch=count / ended.batches,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="paper")
    parser.add_argument("--server", type=int, default=0)
    parser.add_argument("--plan", choices=("widest", "narrowest"), default="widest")
    parser.add_argument("--loads", default="0.1,0.3,0.5,0.7,0.9")
    parser.add_argument("--joules", default="0,0.2,1")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    scenario = load_scenario(given.scenario, accuracy="paper")
    model, profile = scenario.cluster.models[0], scenario.cluster.profiles[given.server]
    plan = model.spec.widest if given.plan == "widest" else model.spec.narrowest
    key = onward(model.legs(plan)[0], tuple(plan[1:]))
    limit = scenario.cluster.batch_limit
    sizes = range(1, limit + 1)
    run_s = [profile.latency_s(key, size) for size in sizes]
    energy_j = [profile.energy_j(key, size) for size in sizes]
    capacity_per_s = max(size / one for size, one in zip(sizes, run_s, strict=True))
    print(f"{profile.name}, {given.plan} plan, batches up to {limit}, {capacity_per_s:,.0f}/s at most\n")
    print("| load | κ | starts at | greedy | best | could save | greedy, run | smdp, run | saved |")
    print("|---|---|---|---|---|---|---|---|---|")
    names = {choices[one] for choices, one in zip(model.spec.segments, plan, strict=True)}
    plain = SchedulerOptions(batch_limit=limit, scale_trigger=given.requests, resident=tuple(sorted(names)))
    for load in [float(text) for text in given.loads.split(",")]:
        rng, rate_per_s = np.random.default_rng(given.seed), load * capacity_per_s
        arrivals_s = np.cumsum(rng.exponential(1.0 / rate_per_s, given.requests)).tolist()
        ran = simulate(key, profile, model, plain, arrivals_s)
        for joule_s in [float(text) for text in given.joules.split(",")]:
            queue = BatchQueue(rate_per_s, run_s, energy_j, joule_s)
            rule = queue.best()
            greedy, best = queue.cost(queue.greedy()), queue.cost(rule)
            waits = replace(plain, batching="smdp", joule_s=joule_s)
            smdp = simulate(key, profile, model, waits, arrivals_s)
            cells = [f"{100 * load:.0f} %", f"{joule_s:g}", f"{least_to_start(rule)}"]
            cells += [_figures(greedy), _figures(best), _saved(greedy, best, joule_s)]
            cells += [_figures(ran), _figures(smdp), _saved(ran, smdp, joule_s)]
            print(f"| {' | '.join(cells)} |", flush=True)


def _figures(cost: Cost) -> str:
    return f"{1e3 * cost.latency_s:.2f}, {1e3 * cost.energy_j:.0f}, {cost.batch:.1f}"


def _saved(before: Cost, after: Cost, joule_s: float) -> str:
    """Return how much of the cost, mean latency plus κ times energy, is saved."""
    first, then = (one.latency_s + joule_s * one.energy_j for one in (before, after))
    return f"{100 * (1.0 - then / first):.1f} %"


if __name__ == "__main__":
    main()
