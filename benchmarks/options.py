"""What each option of the local scheduler gains over the paper's plain rule, measured in one run.

    python benchmarks/options.py

The load is near the capacity of the paper's cluster, with deadlines. Each option is switched on alone. The
router `random` chooses random widths and shows how the local scheduler copes with a bad mix of keys; `sed`
gives it a good mix.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.serving.gateway.messages import Answer
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.simulated.run import simulate

OPTIONS: dict[str, dict[str, object]] = {
    "plain (Algorithm 1)": {},
    "order=deadline": {"order": "deadline"},
    "early_drop": {"early_drop": True},
    "deadline + early_drop": {"order": "deadline", "early_drop": True},
}


def main() -> None:
    paper = load_scenario("paper", accuracy="paper")
    for router, rate in (("random", 6000.0), ("random", 9200.0), ("sed", 9200.0)):
        print(f"\n{router} at {rate:,.0f} requests/s, deadline 1 s, 20 s")
        print(
            f"{'option':27}{'accuracy':>10}{'mean s':>9}{'p99 s':>9}{'in time':>9}{'dropped':>9}{'batch':>7}"
        )
        for name, change in OPTIONS.items():
            plain: tuple[SchedulerOptions, ...] = paper.schedulers
            options = tuple(replace(one, **change) for one in plain)
            scenario = replace(paper.with_load(rate_per_s=rate, seconds=20.0), schedulers=options)
            row = simulate(scenario, router, bound_accuracy=1.0).summary
            print(
                f"{name:27}{100 * row.accuracy:9.2f}%{row.latency_mean_s:9.3f}{row.latency_p99_s:9.3f}"
                f"{100 * row.slo_attainment:8.1f}%{row.dropped:9}{row.batch_mean:7.1f}"
            )
    priorities(paper)


class LatencyByPriority:
    """Keeps the latencies of urgent requests and of other requests apart."""

    def __init__(self) -> None:
        self.latency_s: dict[int, list[float]] = {0: [], 1: []}

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        for command in commands:
            if isinstance(command, Answer):
                for request in command.requests:
                    self.latency_s[request.priority].append(now_s - request.arrival_s)


def priorities(paper: Scenario) -> None:
    """Show what the option does for urgent requests (one in ten) and for the others."""
    print("\nrandom at 6,000 requests/s, one in ten urgent: mean latency s")
    for on in (False, True):
        options = tuple(replace(one, priorities=on) for one in paper.schedulers)
        load = replace(paper.load, rate_per_s=6000.0, seconds=20.0, urgent_share=0.1)
        by_priority = LatencyByPriority()
        scenario = replace(paper, schedulers=options, load=load)
        simulate(scenario, "random", bound_accuracy=1.0, observers=[by_priority])
        urgent, others = (float(np.mean(by_priority.latency_s[level])) for level in (1, 0))
        print(f"priorities={on!s:6} urgent {urgent:.3f}  others {others:.3f}")


if __name__ == "__main__":
    main()
