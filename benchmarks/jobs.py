"""How fast the job simulator is, with dally on 512 GPUs and 20,000 jobs like those of Helios.

    python benchmarks/jobs.py
    python benchmarks/compile_jobs.py build/compiled && PYTHONPATH=build/compiled python benchmarks/jobs.py

An event is one that the scheduler handles (a submission, a finish, an acknowledged preemption, a wake-up);
finishes that were moved and skipped do not count. Wall time is from the first event to the last, one core.
Load is offered work over capacity: what ideal placements would need.
"""

import sys

import numpy as np

import slimsched.jobs.scheduler
from slimsched.domain.topology import Topology
from slimsched.execution.simulated_jobs_comparison import JobSetting, prepare, simulate
from slimsched.workload.job_generator import generate_jobs

JOBS = 20_000
LOADS = (0.5, 0.7, 0.8, 0.9, 1.0)
POLICIES = ("fifo", "fit-first", "srtf", "tiresias", "gandiva", "themis", "lwf", "a-srpt")


def main() -> None:
    topology = Topology.grid(racks=8, machines_per_rack=8, gpus_per_machine=8, name="racks-512")
    trace = generate_jobs(JOBS, np.random.default_rng(0))
    compiled = slimsched.jobs.scheduler.__file__.endswith(".so")
    how = "compiled" if compiled else "interpreted"
    print(f"Python {sys.version.split()[0]}, {how}, {JOBS:,} jobs, congested")
    print("| policy | load | events | preemptions | GPUs held | events/s |\n|---|---|---|---|---|---|")
    cases = [("dally", load) for load in LOADS] + [(policy, 0.8) for policy in POLICIES]
    for policy, load in cases:
        setting = JobSetting(machines=topology.machines, cluster=topology.name, arrivals="poisson", load=load)
        jobs = prepare(trace, setting, 0)
        best = max(
            (simulate(policy, jobs, setting, 0)[0] for _ in range(2)), key=lambda s: s.events_per_wall_s
        )
        print(
            f"| {policy} | {load} | {best.events:,} | {best.preemptions:,} | {100 * best.utilization:.0f} % "
            f"| {best.events_per_wall_s:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
