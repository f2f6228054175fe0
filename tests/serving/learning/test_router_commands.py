"""`slim router` and goals on the command line, as a user runs them."""

import json
from pathlib import Path

import pytest

from command_line import CliRunner
from slimsched.core.config import SlimError

runner = CliRunner()


def run(*words: str) -> str:
    result = runner.invoke(words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_of_routers_has_classical_and_learned_ones() -> None:
    names = json.loads(run("router", "list", "--json"))
    assert {"random", "lp", "ppo-efficient", "ppo-balanced", "goal"} <= set(names)


@pytest.mark.parametrize("state", ["paper", "head"])
def test_a_policy_is_trained_resumed_and_used(tmp_path: Path, state: str) -> None:
    out, kept = tmp_path / "policy.safetensors", tmp_path / "run.pt"
    words = ["router", "train", "--state", state, "--rate", "400", "--drawn", "0"]
    words += ["--out", str(out), "--resume", str(kept), "--json"]
    assert json.loads(run(*words, "--updates", "1"))["updates"] == 1
    assert json.loads(run(*words, "--updates", "2"))["updates"] == 2
    story = json.loads(out.with_suffix(".json").read_text())
    assert len(story["curve"]) == 2
    assert story["curriculum"]["rates_per_s"] == pytest.approx([400 * 4000 / 9200, 400])
    row = json.loads(run("simulate", "--router", f"ppo:{out}", "--rate", "400", "--seconds", "0.3", "--json"))
    assert row["completed"] > 0


@pytest.mark.parametrize(
    "words",
    [
        ("router", "train", "--weights", "1,2"),
        ("router", "train", "dqn"),
        ("router", "train", "--state", "paper", "--goal", "p99<=60ms"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...]) -> None:
    with pytest.raises(SlimError):
        runner.invoke(words, catch_exceptions=False)
