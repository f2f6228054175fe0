"""A throw-away Slurm comes up with racks and GPUs, and goes without a trace."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from slimsched.jobs.slurm.wire import JobRequest, SlurmError, Status
from throw_away_slurm import ThrowAwaySlurm, wait_until

STUBBORN = "--wrap=trap '' TERM; sleep 600 & sleep 600"


@pytest.mark.slow
@pytest.mark.slurm
def test_the_machines_stand_in_racks_and_have_gpus(site) -> None:
    nodes = site.client.nodes()
    assert [(node.name, node.gpus, node.usable) for node in nodes] == [
        (f"n{i}", 8, True) for i in range(1, 9)
    ]
    assert site.client.racks() == {f"n{i}": "rack1" if i <= 4 else "rack2" for i in range(1, 9)}


@pytest.mark.slow
@pytest.mark.slurm
def test_a_second_slurm_in_the_same_folder_is_refused(site) -> None:
    with pytest.raises(SlurmError, match=r"lives in .* already"):
        ThrowAwaySlurm(site.cluster.folder).start()


@pytest.mark.slow
@pytest.mark.slurm
def test_stopping_ends_daemons_and_stubborn_jobs_and_spares_everybody_else(site) -> None:
    folder = Path(tempfile.mkdtemp(prefix="slim-slurm-"))
    small = ThrowAwaySlurm(folder, racks=1, machines_per_rack=1, gpus_per_machine=2)
    small.start()
    bystander = subprocess.Popen(["sleep", "600"], env=dict(os.environ) | {"SLURM_CONF": str(small.conf)})
    try:
        options = ["--output=/dev/null", STUBBORN]
        small.client.release(small.client.submit((), gpus=1, request=JobRequest(), options=options))
        wait_until(
            lambda: any(job.status is Status.RUNNING for job in small.client.jobs()),
            "the stubborn job runs",
            timeout_s=30,
        )
        wait_until(
            lambda: len(small.processes()) > 4,
            "munged, slurmctld, slurmd, slurmstepd and the job run",
            timeout_s=30,
        )
        small.stop()
        assert not small.processes()
        assert not folder.exists()
        assert bystander.poll() is None
    finally:
        small.stop()
        bystander.kill()
        bystander.wait()
