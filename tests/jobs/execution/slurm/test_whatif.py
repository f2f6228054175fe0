"""`slim jobs whatif` on what a real Slurm wrote down: does the simulated present agree with what happened?"""

import json
import os
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.execution.slurm.conftest import SLIM
from slimsched.jobs.execution.slurm.cluster import ThrowAwaySlurm, missing_daemons, wait_until
from slimsched.jobs.execution.slurm.job import Status

SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 8, 16)
JOBS = 200 if os.environ.get("SLIM_LONG") else 60
"""With 200 jobs the test takes four minutes for each scheduler."""
USERS = ("--job-name=bert-large", "--job-name=lm", "--job-name=sweep")


@pytest.fixture(params=["builtin", "backfill"])
def own_slurm(request, cluster) -> Iterator[ThrowAwaySlurm]:
    """A Slurm that schedules by itself; `cluster` skips the test where Slurm is not installed."""
    assert not missing_daemons()
    own = ThrowAwaySlurm(Path(tempfile.mkdtemp(prefix="slim-slurm-")), scheduler=request.param)
    own.start()
    yield own
    own.stop()


def slurm(own: ThrowAwaySlurm, *command: str) -> str:
    """Run one of Slurm's own commands."""
    environment = dict(os.environ) | {"SLURM_CONF": str(own.conf)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def submit(own: ThrowAwaySlurm, rng: random.Random) -> None:
    """Submit a gang that sleeps, with a limit of one or two minutes."""
    gpus, seconds = rng.choice(SIZES), rng.uniform(4, 12)
    nodes = ["--nodes=2", "--gpus-per-node=8"] if gpus == 16 else ["--nodes=1", f"--gpus-per-node={gpus}"]
    command = ["sbatch", *nodes, rng.choice(USERS), f"--time={rng.randint(1, 2)}", "--output=/dev/null"]
    slurm(own, *command, f"--wrap=sleep {seconds:.1f}")


@pytest.mark.slow
@pytest.mark.slurm
def test_the_simulated_present_agrees_with_real_jobs(own_slurm, tmp_path, capsys) -> None:
    rng = random.Random(3)
    for number in range(JOBS):
        submit(own_slurm, rng)
        if number % 4 == 3:
            time.sleep(1.0)
    wait_until(
        lambda: all(job.status is Status.GONE for job in own_slurm.client.jobs()),
        "all jobs are done",
        timeout_s=300,
        step_s=1.0,
    )
    page, records = tmp_path / "whatif.html", tmp_path / "jobs.json"
    records.write_text(slurm(own_slurm, "squeue", "--json", "--states=all"))
    files = ["--sacct", records, "--nodes", own_slurm.conf, "--topology", own_slurm.topology]
    asked = subprocess.run(
        [SLIM, "jobs", "whatif", *map(str, files), "--models=none", f"--out={page}", "--json"],
        capture_output=True,
        text=True,
    )
    assert not asked.returncode, asked.stderr
    found = json.loads(asked.stdout)
    with capsys.disabled():
        print(
            f"\nwhatif, {found['present']}: recorded {found['recorded']}, simulated {found['simulated']}, "
            f"differences {found['differences']}, handover {found['handover_s']} s"
        )
    assert found["jobs"] == JOBS
    assert (found["gpus"], found["racks"]) == (64, 2)
    # limits here are ten times the real durations, so which job slips into a gap is a matter of luck
    close = 0.10 if found["present"] == "fifo" else 0.25
    assert abs(found["differences"]["wait_mean_s"]) <= close
    assert abs(found["differences"]["makespan_s"]) <= 0.10
    assert {gain["group"] for gain in found["by_size"]} == {"1 GPU", "2–4 GPUs", "5–8 GPUs", "9–16 GPUs"}
    text = page.read_text()
    assert ("agrees with the records" in text) == found["agrees"]
    assert not re.search(r"(src|href)=.https?:", text), "the page loads nothing from outside"
