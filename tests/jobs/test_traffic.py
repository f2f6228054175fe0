"""Gangs that really all-reduce over limited links: two racks are slower than one, as the model says."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from throw_away_slurm import wait_until

TRAFFIC = Path(__file__).parents[2] / "benchmarks" / "jobs_traffic"
STEPS = 5
RACKS = "import racks, sys; getattr(racks.Racks(), sys.argv[1])()"


@pytest.fixture
def racks() -> Iterator[None]:
    if os.geteuid() or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces and tc need root and iproute2")
    if subprocess.run(["ip", "netns", "add", "slimtry"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not permitted here")
    subprocess.run(["ip", "netns", "del", "slimtry"], check=True)
    call = [sys.executable, "-c", RACKS]
    try:
        subprocess.run([*call, "up"], cwd=TRAFFIC, check=True)
        yield
    finally:
        subprocess.run([*call, "down"], cwd=TRAFFIC, check=True)


@pytest.fixture
def server(racks: None, tmp_path: Path) -> Iterator[Path]:
    process = subprocess.Popen([sys.executable, "gang_server.py", str(tmp_path)], cwd=TRAFFIC)
    try:
        wait_until((tmp_path / "gangs").exists, "the gang server is ready", timeout_s=60)
        yield tmp_path
    finally:
        process.kill()
        process.wait()


def train(server: Path, job: int, nodes: str) -> float:
    """Let a gang iterate on these machines; returns the seconds it took."""
    with socket.socket(socket.AF_UNIX) as gang:
        gang.connect(str(server / "gangs"))
        request = {"job": str(job), "nodes": nodes, "steps": STEPS, "compute_s": 0.05}
        gang.sendall(json.dumps({**request, "gradient_bytes": 1_250_000}).encode() + b"\n")
        assert gang.recv(16) == b"done"
    line = json.loads((server / "journal").read_text().splitlines()[-1])
    assert line["machines"] == nodes.split(",")
    assert (server / f"{job}.step").read_text() == str(STEPS)
    return line["ended_s"] - line["started_s"]


def test_a_gang_across_racks_is_slower_because_its_bytes_are(server: Path) -> None:
    # by the model 0.1 s an iteration in one rack and 0.45 s across; links let nobody be faster than that
    near_s, far_s = train(server, 1, "n1,n2"), train(server, 2, "n4,n5")
    assert far_s >= STEPS * 0.9 * 0.45
    assert far_s > 1.5 * near_s
