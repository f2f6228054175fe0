"""Gavel's simulator (stanford-futuredata/gavel): one kind of GPU on which every job runs at one pace.

Its code runs as it is, in the Python that `--python` names (cvxpy with ECOS, grpcio-tools). Its RPC stubs are
made by its own Makefile first; `matrix_completion`, which it imports and does not need here, is left empty.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slimsched.jobs.domain import Job

SCHEDULES = {"fifo": "fifo", "max-min": "max_min_fairness"}
ROUND_S = 360
RESET_S = 1920
STEPS_PER_S = 1000
"""A job with fewer steps than GPUs would never end in this simulator."""

LAUNCH = """\
import functools, runpy, sys
sys.path.insert(0, ".")
import scheduler
scheduler.Scheduler = functools.partial(scheduler.Scheduler, minimum_time_between_allocation_resets={reset_s})
runpy.run_path("scripts/drivers/simulate_scheduler_with_trace.py", run_name="__main__")
"""
"""Their driver; it leaves the time between two allocations, an option of their scheduler, at 1,920 s."""


def run(
    checkout: Path,
    schedule: str,
    jobs: Sequence[Job],
    gpus: int,
    folder: Path,
    python: str,
    round_s: int = ROUND_S,
    reset_s: int = RESET_S,
) -> dict[str, float]:
    """Run Gavel's simulator in rounds, with an allocation every `reset_s`; return completion times."""
    trace, throughputs = folder / "jobs.trace", folder / "throughputs.json"
    fixed = ("job", "command", "folder", "--steps", 0)
    rows = [(*fixed, round(job.service_s * STEPS_PER_S), job.gpus, 1, -1.0, job.arrival_s) for job in jobs]
    lines = ["\t".join(map(str, row)) for row in rows]
    trace.write_text("\n".join(lines) + "\n")
    one = {repr(("job", size)): {"null": float(STEPS_PER_S)} for size in sorted({job.gpus for job in jobs})}
    throughputs.write_text(json.dumps({"v100": one}))
    (folder / "matrix_completion.py").touch()
    command = [python, "-c", LAUNCH.format(reset_s=reset_s), "-t", str(trace), "-p", schedule]
    command += ["-c", f"{gpus}:0:0", "--num_gpus_per_server", f"{gpus}:1:1", "--seed", "0"]
    command += ["--throughputs_file", str(throughputs), "--time_per_iteration", str(round_s)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command,
        cwd=checkout / "scheduler",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip().splitlines()[-1]}")
    times = re.findall(r"^Job (\d+): ([\d.]+)$", done.stdout, re.MULTILINE)
    return {job_id: float(jct_s) for job_id, jct_s in times}
