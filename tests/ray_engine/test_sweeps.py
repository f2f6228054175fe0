"""Sweeps as Ray tasks: the same figures as in processes of this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from raylets import Raylets


def slim(*words: str) -> object:
    command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figures(rows: object) -> list[dict[str, object]]:
    assert isinstance(rows, list)
    return [{name: value for name, value in row.items() if "wall" not in name} for row in rows]


def test_a_comparison_gives_the_same_table(raylets: Raylets) -> None:
    words = ("compare", "--routers", "random,jsq", "--seeds", "2", "--seconds", "0.5", "--json")
    here = figures(slim(*words, "--workers", "1"))
    there = figures(slim(*words, "--engine", "ray", "--address", raylets.address))
    for row in (*here, *there):
        del row["ci95"]  # knows how long runs took
    assert here == there


def test_training_finds_the_same_parameters(raylets: Raylets, tmp_path: Path) -> None:
    words = ("router", "train", "goal", "--updates", "1", "--json", "--out")
    slim(*words, str(tmp_path / "here.json"), "--workers", "1")
    slim(*words, str(tmp_path / "there.json"), "--engine", "ray", "--address", raylets.address)
    here, there = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("here", "there"))
    assert here["parameters"] == there["parameters"]
