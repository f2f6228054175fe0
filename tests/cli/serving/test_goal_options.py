"""One goal syntax: as an option, in brackets, in a scenario file; the same goal gives the same run."""

import json
from pathlib import Path

import pytest

from command_line import CliRunner
from slimsched.core.config import ConfigError

GOAL = "accuracy>=75, p99<=60ms, min energy"
PAPER = Path(__file__).parents[3] / "configs" / "paper.toml"
SHORT = ("--rate", "3000", "--seconds", "0.5", "--json")


def run(*words: str) -> str:
    result = CliRunner().invoke(words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def figures(text: str) -> list[tuple[float, float]]:
    rows = json.loads(text)
    return [(row["accuracy"], row["latency_p99_s"]) for row in (rows if isinstance(rows, list) else [rows])]


def test_every_way_to_state_a_goal_gives_the_same_run(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(f'goal = "{GOAL}"\n' + PAPER.read_text())
    (plain,) = figures(run("simulate", "--router", "goal", *SHORT))
    (option,) = figures(run("simulate", "--goal", GOAL, *SHORT))
    (brackets,) = figures(run("simulate", "--router", f"goal[{GOAL}]", *SHORT))
    (file,) = figures(run("simulate", "--router", "goal", "--config", str(config), *SHORT))
    assert option == brackets == file != plain


def test_compare_takes_a_goal_for_all_and_one_per_router() -> None:
    routers = f"sed,goal,goal[{GOAL}],goal[p99<=200ms]"
    sed, goal, same, other = figures(
        run("compare", "--workers", "1", "--goal", GOAL, "--routers", routers, *SHORT)
    )
    assert goal == same
    assert len({sed, goal, other}) == 3


def test_a_run_with_a_goal_can_be_replayed(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    run("simulate", "--goal", GOAL, "--out", out, *SHORT)
    assert json.loads(run("replay", out, "--json"))["same"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("simulate", "--router", "sed", "--goal", GOAL), "router 'sed' follows no goal"),
        (("compare", "--routers", "sed,lp", "--goal", GOAL), "these routers follow no goal"),
        (("validate", "--router", "jsq", "--goal", GOAL), "router 'jsq' follows no goal"),
        (("serve", "--router", "jsq", "--goal", GOAL), "router 'jsq' follows no goal"),
        (("demo", "--routers", "jsq", "--goal", GOAL), "router 'jsq' follows no goal"),
        (("simulate", "--goal", "fast please"), "write accuracy>=75, p99<=60ms"),
    ],
)
def test_a_goal_that_nobody_follows_is_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(*words)
