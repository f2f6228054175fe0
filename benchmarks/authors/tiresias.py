"""Tiresias' simulator (SymbioticLab/Tiresias), and Muri's (Rivendile/Muri), which grew out of it.

Their code runs as it is, in a process of its own. On Python 3 it only misses `sys.maxint`, which we give it.
"""

import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from slimsched.jobs.domain import Job

SCHEDULES = {
    "fifo": "fifo",
    "fit-first": "fjf",
    "srtf": "shortest",
    "srsf": "shortest-gpu",
    "tiresias": "dlas-gpu",
}
"""Our policy and the name of their schedule."""
MURI_SCHEDULES = {"srtf": "shortest", "srsf": "shortest-gpu", "tiresias": "dlas-gpu"}
LAUNCH = """\
import sys, runpy
sys.maxint = sys.maxsize
sys.path.insert(0, ".")
runpy.run_path("run_sim.py", run_name="__main__")
"""
MILLIS = 1000
"""Muri reads milliseconds and writes seconds."""
MURI_SIZES = (1, 2, 4, 8, 16, 32)
"""The gangs that Muri has launch overheads for."""


def run(
    checkout: Path, schedule: str, jobs: Sequence[Job], gpus: int, folder: Path, ticks_per_s: int
) -> dict[str, float]:
    """Run Tiresias' simulator and return each job's completion time.

    It counts in whole numbers: seconds where its rule has limits in seconds, else any unit will do.
    """
    trace = folder / "jobs.csv"
    with trace.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")
        )
        for job in jobs:
            arrival, service = round(job.arrival_s * ticks_per_s), round(job.service_s * ticks_per_s)
            rows.writerow((job.id, job.gpus, arrival, 1, "resnet50", service, 0))
    options = ["--scheme=count", f"--schedule={schedule}", f"--trace_file={trace}"]
    done = _launch(checkout / "simulator", options, gpus, folder, sys.executable)
    return {job_id: ticks / ticks_per_s for job_id, ticks in done.items()}


def run_muri(
    checkout: Path, schedule: str, jobs: Sequence[Job], gpus: int, folder: Path, python: str
) -> dict[str, float]:
    """Run Muri's simulator; its launch overheads cannot be turned off, so `dqn`, the cheapest, is named."""
    trace = folder / "jobs.csv"
    heads = (
        "job_id",
        "num_gpu",
        "submit_time",
        "iterations",
        "model_name",
        "batch_size",
        "duration",
        "interval",
    )
    with trace.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow((*heads, "iteration_time", *(f"resource_time_{i}" for i in range(3)), "priority"))
        for job in jobs:
            millis = round(job.service_s * MILLIS)
            times = (round(job.arrival_s * MILLIS), max(1, millis // 500), "dqn", 128, millis, 0, 500)
            rows.writerow((job.id, job.gpus, *times, 446, 8, 0, 1))
    options = ["--scheme=yarn", f"--schedule={schedule}", f"--trace_file={trace}", "--multi_resource=4"]
    return _launch(checkout / "simulator", options, gpus, folder, python)


def _launch(
    simulator: Path, options: Sequence[str], gpus: int, folder: Path, python: str
) -> dict[str, float]:
    cluster, logs = folder / "cluster.csv", folder / "logs"
    logs.mkdir()
    per_node = 8 if gpus % 8 == 0 else gpus
    cluster.write_text(
        "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"
        f"1,{gpus // per_node},{per_node},1280,25600\n"
    )
    command = [python, "-c", LAUNCH, f"--cluster_spec={cluster}", f"--log_path={logs}", *options]
    done = subprocess.run(command, cwd=simulator, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{simulator}: {done.stderr.strip().splitlines()[-1]}")
    with (logs / "job.csv").open() as file:
        return {row["job_id"]: float(row["JCT"]) for row in csv.DictReader(file)}
