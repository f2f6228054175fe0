"""Jobs that may run on fewer or more GPUs beside jobs that keep what they asked for, on Sia's own workloads.

    python benchmarks/elastic.py --data ~/data

64 T4s, four per machine; every job at the batch size its user chose, at the measured pace. Means over
`--seeds` workloads of a kind with half the 95 % interval, and the difference to dally workload by workload.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sia_workload import read_sia_workload

from slimsched.core.statistics import mean_of
from slimsched.jobs.domain import Job, Topology, TrainingModel
from slimsched.jobs.simulated.comparison import JobSetting, simulate
from slimsched.jobs.telemetry import JobSummary

POLICIES = ("dally", "elastic", "sia", "fit-first", "tiresias", "max-min", "srtf")
T4S = Topology.grid(racks=4, machines_per_rack=4, gpus_per_machine=4, name="T4s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kinds", default="philly,saturn")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--first", type=int, default=1, help="number of the first workload")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    columns = ("workloads", "policy", "JCT mean (h)", "p99 (h)", "makespan (h)", "GPUs held", "stops", "JCT")
    print("|", " | ".join(columns), "against dally |\n|" + "---|" * len(columns))
    for kind in given.kinds.split(","):
        workloads = [
            read_sia_workload(given.data, f"{kind}/workload-{number}")
            for number in range(given.first, given.first + given.seeds)
        ]
        rigid: list[JobSummary] = []
        for policy in given.policies.split(","):
            rows = [_run(policy, *workload) for workload in workloads]
            rigid = rigid or rows
            _show(kind, policy, rows, rigid)


def _run(policy: str, jobs: list[Job], models: dict[str, TrainingModel]) -> JobSummary:
    setting = JobSetting(machines=T4S.machines, cluster=T4S.name, known_models=models)
    return simulate(policy, jobs, setting, 0)[0]


def _show(kind: str, policy: str, rows: Sequence[JobSummary], rigid: Sequence[JobSummary]) -> None:
    def hours(name: str) -> str:
        mean_s, half_s = mean_of([getattr(row, name) for row in rows])
        return f"{mean_s / 3600:.2f} ± {half_s / 3600:.2f}"

    pairs = zip(rows, rigid, strict=True)
    gain, half = mean_of([100 * (row.jct_mean_s / other.jct_mean_s - 1) for row, other in pairs])
    held, _ = mean_of([row.utilization for row in rows])
    stops, _ = mean_of([row.preemptions for row in rows])
    against = "" if rows is rigid else f"{gain:+.0f} ± {half:.0f} %"
    cells = [hours("jct_mean_s"), hours("jct_p99_s"), hours("makespan_s"), f"{held:.0%}", f"{stops:.0f}"]
    print("|", " | ".join([kind, policy, *cells, against]), "|", flush=True)


if __name__ == "__main__":
    main()
