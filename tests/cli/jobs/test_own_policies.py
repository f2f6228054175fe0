"""A policy of one's own, from a file or from an installed package, in every command that takes one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from jobs.workloads import OWN
from slimsched.cli.jobs.app import app
from slimsched.core.config import SlimError

SMALL = ["--trace", "generated", "--jobs", "40", "--cluster", "racks-64", "--arrivals", "batch"]


def run(*arguments: str):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return json.loads(result.stdout)


def test_a_policy_from_a_file_is_simulated_compared_and_explained() -> None:
    assert run("simulate", *SMALL, "--policy", OWN, "--json")["policy"] == OWN
    rows = run("compare", *SMALL, "--policies", f"fifo,{OWN}", "--workers", "1", "--json")
    assert [row["policy"] for row in rows] == ["fifo", OWN]
    assert run("explain", "g7", *SMALL, "--policy", OWN, "--at-s", "1", "--json")["reason"]


def test_a_policy_from_a_file_is_named_to_slurm_before_anything_is_asked_of_it() -> None:
    missing = OWN.replace("LargestFirst", "SmallestFirst")
    with pytest.raises(SlimError, match="has no class 'SmallestFirst'; it has: LargestFirst"):
        CliRunner().invoke(app, ["run", "--policy", missing, "--dry-run"], catch_exceptions=False)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a policy, named by an entry point."""
    path = tmp_path / "youngest-1.0-py3-none-any.whl"
    files = {
        "youngest.py": """\
            from slimsched.jobs.scheduler.policy import Policy


            class Youngest(Policy):
                def __init__(self, *, backwards: bool = True):
                    self.sign = -1.0 if backwards else 1.0

                def key(self, job, now_s):
                    return (self.sign * job.job.arrival_s,)
            """,
        "youngest-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: youngest\nVersion: 1.0\n",
        "youngest-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "youngest-1.0.dist-info/entry_points.txt": "[slimsched.job_policies]\nyoungest = youngest:Youngest\n",
        "youngest-1.0.dist-info/RECORD": "",
    }
    with ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, dedent(text))
    return path


def test_a_policy_of_an_installed_package_is_compared(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
    installed = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    if "No module named pip" in installed.stderr:
        with ZipFile(wheel) as archive:  # what pip does with a pure wheel
            archive.extractall(site)
    else:
        assert installed.returncode == 0, installed.stderr
    command = [sys.executable, "-c", "from slimsched.cli.jobs.app import app; app()", "compare", *SMALL]
    policies = "fit-first,youngest,youngest:backwards=false"
    paths = os.pathsep.join([str(site), *filter(None, sys.path)])
    done = subprocess.run(
        [*command, "--policies", policies, "--workers", "2", "--json"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    plain, backwards, forwards = json.loads(done.stdout)
    assert [row["policy"] for row in (plain, backwards, forwards)] == policies.split(",")
    assert forwards["jct_mean_s"] == plain["jct_mean_s"]
    assert backwards["jobs"] == 40
