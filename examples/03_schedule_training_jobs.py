"""Place 150 training jobs on two racks with three policies, and see whether waiting for a good place pays.

python examples/03_schedule_training_jobs.py
"""

import numpy as np

from slimsched import JobSetting, Topology, generate_jobs, prepare_jobs, simulate_jobs

topology = Topology.grid(racks=2, machines_per_rack=4, gpus_per_machine=8, name="two racks")
setting = JobSetting(machines=topology.machines, cluster=topology.name, network="congested", jobs=150)
trace = generate_jobs(600, np.random.default_rng(0), largest=topology.gpus)
jobs = prepare_jobs(trace, setting, seed=0)

for policy in ("fifo", "tiresias", "dally"):
    row, _, _ = simulate_jobs(policy, jobs, setting, seed=0)
    print(
        f"{policy:10} mean completion {row.jct_mean_s / 3600:7.2f} h, makespan {row.makespan_s / 3600:7.2f} h"
    )
