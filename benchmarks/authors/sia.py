"""Sia's simulator (siasosp23/artifacts) beside our `sia`, on its own workloads and 16 machines of 4 T4s.

    python benchmarks/authors/sia.py --data ~/data --sia artifacts/sia-simulator --python old-venv/bin/python

Its scheduler, goodput models, jobs and loop run as they are, in the Python that `--python` names (numpy 1.23,
pandas 1.5, scipy, autograd, cvxpy, cvxopt, psutil, rich). Set from outside: one kind of GPU; batch sizes as
the users chose them (its option `disable_bsz_tuning`); a restart costs every application the same, and no
correction for real runs, because ours knows neither; GLPK in the place of CBC, which solves the same program.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from our_side import Figures, figures

from slimsched.jobs.domain import Job, Topology, TrainingModel
from slimsched.jobs.policies.elastic import Sia
from slimsched.jobs.simulated.cluster import Checkpoint
from slimsched.jobs.simulated.comparison import JobSetting, build
from slimsched.jobs.telemetry import histories

sys.path.insert(0, str(Path(__file__).parents[1]))

from sia_workload import read_sia_workload

RESTART_S = 60
MACHINES = 16

LAUNCH = """\
import argparse, contextlib, io, json, os, sys
sys.path.insert(0, ".")
import cvxpy as cp
import simulator_config as config
config.cluster_nnodes = {{"aws": {machines}}}
config.calibrate_cluster = "aws"
config.sia_solver_verbose = False
config.SLOWDOWNS.update(dict.fromkeys(config.SLOWDOWNS, 1.0))
import applications
for name in list(applications.APPLICATIONS):
    if name != "aws":
        del applications.APPLICATIONS[name]
for application in applications.APPLICATIONS["aws"].values():
    application.rescale_time = {restart_s}
import sia
sia.get_restart_penalty = lambda name: {restart_s}
solve = cp.Problem.solve
cp.Problem.solve = lambda self, **ignored: solve(self, solver=cp.GLPK_MI)
import multi_simulator
multi_simulator.Console = lambda: argparse.Namespace(print=lambda *shown: None)
options = argparse.Namespace(
    workload={workload!r}, policy="sia", policy_p_val=-0.5, mip_lambda_n=1.1, mip_lambda_a=0.01,
    cluster_scale=None, project_throughputs=False, share_max_replicas=False, disable_bsz_tuning=True,
    oracle_num_nodes={oracle_nodes}, oracle_num_replicas=64, interval=60, output=None, debug=False,
)
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    _, jct_s = multi_simulator.multi_simulate(options)
json.dump({{name: float(value) for name, value in jct_s.items()}}, sys.stdout)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sia", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--workloads", default="philly/workload-1,saturn/workload-1")
    parser.add_argument("--jobs", type=int, default=160)
    given = parser.parse_args()
    print("| workload | jobs | Sia knows | | theirs | ours | difference |\n|---|---|---|---|---|---|---|")
    for name in given.workloads.split(","):
        every, models = read_sia_workload(given.data, name)
        jobs = every[: given.jobs]
        ours = figures(simulate(jobs, models), jobs)
        for knows, nodes in (("what it has run", 0), ("all sizes", MACHINES)):
            theirs = figures(run(given.sia.resolve(), given.python, jobs, nodes), jobs)
            _show(name, len(jobs), knows, theirs, ours)


def _show(name: str, jobs: int, knows: str, theirs: Figures, ours: Figures) -> None:
    for what, a, b in zip(("mean JCT", "makespan"), theirs, ours, strict=False):
        print(f"| {name} | {jobs} | {knows} | {what} | {a:,.0f} | {b:,.0f} | {100 * (b / a - 1):+.1f} % |")


def run(checkout: Path, python: str, jobs: list[Job], oracle_nodes: int) -> dict[str, float]:
    """Run Sia's simulator; return completion times by job."""
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "workload.csv"
        lines = ["name,time,application,num_replicas,batch_size"]
        for job in jobs:
            application, batch = job.model.rsplit("-", 1)
            lines.append(f"{job.id},{job.arrival_s},{application},{job.gpus},{batch}")
        workload.write_text("\n".join(lines) + "\n")
        script = LAUNCH.format(
            machines=MACHINES, restart_s=RESTART_S, workload=str(workload), oracle_nodes=oracle_nodes
        )
        done = subprocess.run(
            [python, "-W", "ignore", "-c", script], cwd=checkout, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip()[-2000:]}")
    times: dict[str, float] = json.loads(done.stdout)
    return times


def simulate(jobs: list[Job], models: dict[str, TrainingModel]) -> dict[str, float]:
    """Completion times under ours: every start costs the same, stopping costs nothing, as in theirs."""
    machines = Topology.grid(racks=1, machines_per_rack=MACHINES, gpus_per_machine=4)
    setting = JobSetting(
        machines=machines.machines,
        cluster="T4s",
        known_models=models,
        checkpoint=Checkpoint(save_s=0.0, restore_s=RESTART_S, start_s=RESTART_S),
    )
    done = histories(build(Sia(restart_s=RESTART_S), jobs, setting, 0).run())
    return {job_id: history.jct_s for job_id, history in done.items()}


if __name__ == "__main__":
    main()
