"""How fast the job simulator is, with 20,000 jobs like those of the Helios trace on 512 GPUs.

    python benchmarks/jobs.py

Events are those the scheduler handles: a submission, a finish, an acknowledged preemption, a wake-up.
Finishes that were moved and skipped do not count. Time runs from the first event to the last, on one core, as
wall time and as processor time (equal on an idle machine). Load is the work that ideal placements would need,
divided by capacity. Each row is the better of two runs.
"""

import gc
import sys
from time import perf_counter, process_time

import numpy as np

import slimsched.jobs.scheduler.scheduler
from slimsched.jobs.domain import Topology
from slimsched.jobs.simulated.comparison import JobSetting, build, prepare
from slimsched.jobs.traces.jobs import generate_jobs

JOBS = 20_000
LOADS = (0.5, 0.7, 0.8, 0.9, 1.0)
RIVALS = ("fifo", "fit-first", "srtf", "tiresias", "gandiva", "lwf")


def main() -> None:
    topology = Topology.grid(racks=8, machines_per_rack=8, gpus_per_machine=8, name="racks-512")
    trace = generate_jobs(JOBS, np.random.default_rng(0))
    how = "compiled" if slimsched.jobs.scheduler.scheduler.__file__.endswith(".so") else "interpreted"
    print(f"Python {sys.version.split()[0]}, {how}, {JOBS:,} jobs, congested")
    print("| policy | load | events | events/s wall | events/s processor |\n|---|---|---|---|---|")
    gc.disable()
    for policy, load in [("dally", load) for load in LOADS] + [(policy, 0.8) for policy in RIVALS]:
        setting = JobSetting(machines=topology.machines, cluster=topology.name, arrivals="poisson", load=load)
        jobs = prepare(trace, setting, 0)
        wall_s, processor_s, events = min(_run(policy, jobs, setting) for _ in range(2))
        print(f"| {policy} | {load} | {events:,} | {events / wall_s:,.0f} | {events / processor_s:,.0f} |")


def _run(policy: str, jobs: list, setting: JobSetting) -> tuple[float, float, int]:
    simulation = build(policy, jobs, setting, 0)
    wall_s, processor_s = perf_counter(), process_time()
    simulation.run()
    return perf_counter() - wall_s, process_time() - processor_s, len(simulation.log)


if __name__ == "__main__":
    main()
