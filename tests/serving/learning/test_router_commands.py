"""`slim router`, `slim reproduce` and goals on the command line, as a user runs them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slimsched.cli.app import app
from slimsched.cli.serving.reproduce import REPRODUCTIONS
from slimsched.kernel.errors import SlimError

runner = CliRunner()


def run(*words: str) -> str:
    result = runner.invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_of_routers_has_classical_and_learned_ones() -> None:
    names = json.loads(run("router", "list", "--json"))
    assert {"random", "lp", "ppo-efficient", "ppo-balanced", "goal"} <= set(names)


def test_a_policy_is_trained_resumed_and_used(tmp_path: Path) -> None:
    out, kept = tmp_path / "policy.safetensors", tmp_path / "run.safetensors"
    words = ["router", "train", "--rate", "400", "--out", str(out), "--resume", str(kept), "--json"]
    assert json.loads(run(*words, "--updates", "1"))["updates"] == 1
    assert json.loads(run(*words, "--updates", "2"))["updates"] == 2
    assert len(json.loads(out.with_suffix(".json").read_text())["curve"]) == 2
    row = json.loads(run("simulate", "--router", f"ppo:{out}", "--rate", "400", "--seconds", "0.3", "--json"))
    assert row["completed"] > 0


def test_a_table_is_printed_beside_the_papers_figures() -> None:
    tables = json.loads(
        run("reproduce", "table4", "--seeds", "1", "--seconds", "0.3", "--workers", "1", "--json")
    )
    assert tables["table4"]["paper"]["accuracy, %"] == "70.30"
    assert tables["table4"]["summary"]["router"] == "ppo-efficient"
    assert "70.30" in run("reproduce", "table4", "--seeds", "1", "--seconds", "0.2", "--workers", "1")


@pytest.mark.parametrize(
    "words", [("reproduce", "table9"), ("router", "train", "--weights", "1,2"), ("router", "train", "dqn")]
)
def test_mistakes_are_named(words: tuple[str, ...]) -> None:
    with pytest.raises(SlimError):
        runner.invoke(app, words, catch_exceptions=False)


def test_every_reproduction_is_named_in_the_help() -> None:
    shown = run("reproduce", "--help")
    for name in REPRODUCTIONS:
        assert name in shown
