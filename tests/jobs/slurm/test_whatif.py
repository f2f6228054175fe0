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

from jobs.slurm.conftest import SLIM
from slimsched.jobs.slurm.wire import Status
from throw_away_slurm import ThrowAwaySlurm, missing_daemons, wait_until

LONG = bool(os.environ.get("SLIM_LONG"))
MANY, FEW = (200, 12.0, (1, 1, 1, 2, 2, 4, 4, 8, 8, 16)), (28, 6.0, (1, 2, 8, 8, 16, 16))
JOBS, LONGEST_S, SIZES = MANY if LONG else FEW
"""With 200 jobs the test takes four minutes; with fewer but larger ones, which also wait, half a minute."""
LAG_S = 3.0
"""Slurm looks once a second and records whole seconds; short waits cannot agree more closely than this."""
SCHEDULERS = ("builtin", "backfill")
USERS = ("--job-name=bert-large", "--job-name=lm", "--job-name=sweep")


@pytest.fixture
def own_slurms(cluster) -> Iterator[list[ThrowAwaySlurm]]:
    """Slurms that schedule by themselves, side by side; `cluster` skips the test where none is installed."""
    assert not missing_daemons()
    own: list[ThrowAwaySlurm] = []
    try:
        for scheduler in SCHEDULERS:
            folder = Path(tempfile.mkdtemp(prefix="slim-slurm-"))
            own.append(ThrowAwaySlurm(folder, scheduler=scheduler))
            own[-1].start()
        yield own
    finally:
        for one in own:
            one.stop()


def slurm(own: ThrowAwaySlurm, *command: str) -> str:
    """Run one of Slurm's own commands."""
    environment = dict(os.environ) | {"SLURM_CONF": str(own.conf)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def submit(own: ThrowAwaySlurm, rng: random.Random) -> None:
    """Submit a gang that sleeps, with a limit of one or two minutes."""
    gpus, seconds = rng.choice(SIZES), rng.uniform(LONGEST_S / 3, LONGEST_S)
    nodes = ["--nodes=2", "--gpus-per-node=8"] if gpus == 16 else ["--nodes=1", f"--gpus-per-node={gpus}"]
    command = ["sbatch", *nodes, rng.choice(USERS), f"--time={rng.randint(1, 2)}", "--output=/dev/null"]
    slurm(own, *command, f"--wrap=sleep {seconds:.1f}")


def run_jobs(slurms: list[ThrowAwaySlurm]) -> None:
    """Let the same jobs run on all of them."""
    rngs = [random.Random(3) for _ in slurms]
    for number in range(JOBS):
        for own, rng in zip(slurms, rngs, strict=True):
            submit(own, rng)
        if LONG and number % 4 == 3:
            time.sleep(1.0)
    for own in slurms:
        wait_until(
            lambda own=own: all(job.status is Status.GONE for job in own.client.jobs()),
            "all jobs are done",
            timeout_s=300,
            step_s=1.0,
        )


@pytest.mark.slow
@pytest.mark.slurm
def test_the_simulated_present_agrees_with_real_jobs(own_slurms, tmp_path, capsys) -> None:
    run_jobs(own_slurms)
    for own, scheduler in zip(own_slurms, SCHEDULERS, strict=True):
        found, page = ask(own, tmp_path / scheduler)
        with capsys.disabled():
            print(
                f"\nwhatif, {found['present']}: recorded {found['recorded']}, simulated "
                f"{found['simulated']}, differences {found['differences']}, handover {found['handover_s']} s"
            )
        check(found, page)


def ask(own: ThrowAwaySlurm, folder: Path) -> tuple[dict, str]:
    """Ask `slim jobs whatif` about all that this Slurm has run; returns its answer and its page."""
    folder.mkdir()
    page, records = folder / "whatif.html", folder / "jobs.json"
    records.write_text(slurm(own, "squeue", "--json", "--states=all"))
    files = ["--sacct", records, "--nodes", own.conf, "--topology", own.topology]
    asked = subprocess.run(
        [SLIM, "jobs", "whatif", *map(str, files), "--models=none", f"--out={page}", "--json"],
        capture_output=True,
        text=True,
    )
    assert not asked.returncode, asked.stderr
    return json.loads(asked.stdout), page.read_text()


def check(found: dict, text: str) -> None:
    assert found["jobs"] == JOBS
    assert (found["gpus"], found["racks"]) == (64, 2)
    # limits here are ten times the real durations: with few jobs, who slips into a gap is a matter of luck
    close = 0.10 if LONG or found["present"] == "fifo" else 0.25
    recorded, simulated = found["recorded"], found["simulated"]
    for name, share in {"wait_mean_s": close, "makespan_s": 0.10}.items():
        assert abs(simulated[name] - recorded[name]) <= max(share * recorded[name], LAG_S), name
    if LONG:
        for name in ("wait_mean_s", "makespan_s"):
            assert abs(found["modelled"][name] / recorded[name] - 1.0) <= 0.10, name
    assert {gain["group"] for gain in found["by_size"]} == {"1 GPU", "2–4 GPUs", "5–8 GPUs", "9–16 GPUs"}
    assert ("agrees with the records" in text) == found["agrees"]
    assert not re.search(r"(src|href)=.https?:", text), "the page loads nothing from outside"
