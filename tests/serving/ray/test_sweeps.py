"""Sweeps as Ray tasks: the same figures as in processes of this machine."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("ray")

from raylets import Raylets
from slimsched.serving.learning.tune import GoalTraining, train_goal
from slimsched.serving.ray.engine import RayTasks
from slimsched.serving.scenario.files import load_scenario


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


def test_training_finds_the_same_parameters(raylets: Raylets) -> None:
    like, options = (
        load_scenario("paper"),
        GoalTraining(generations=1, population=4, scenarios=1, requests=300),
    )
    points: list[float] = []
    for pool in (None, RayTasks(raylets.address)):
        train_goal(
            like, options, seed=0, workers=1, report=lambda point: points.append(point.mean), pool=pool
        )
    assert len(points) == 2
    assert points[0] == points[1]


def test_a_run_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(AssertionError, match="--engine ray is for goal"):
        slim("router", "train", "ppo", "--engine", "ray")
