"""The paper's tables and figures, as `benchmarks/paper/run.py` prints them; nothing here needs a GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from msgspec.structs import replace
from typer.testing import CliRunner

from slimsched.core.config import SlimError
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import Compared, simulate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "paper"))

import experiments
import yardstick
from experiments import FRONT, front_accuracy

FOLDER = Path(experiments.__file__).parent
_spec = importlib.util.spec_from_file_location("paper_run", FOLDER / "run.py")
assert _spec is not None
assert _spec.loader is not None
paper_run = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(paper_run)

app = typer.Typer()
app.command()(paper_run.command)

WIDEST = "1.0,1.0,1.0,1.0"


def reproduce(*words: str) -> str:
    """Run the command in this process; return what it prints."""
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_shipped_figures_are_drawn_and_listed(tmp_path: Path) -> None:
    figures = json.loads(reproduce("fig1", "fig2", "fig3", "--out", str(tmp_path), "--json"))
    assert figures["fig1"]["device"]["gpu"] == "NVIDIA H200"
    memory = {p["batch"]: p["segment_bytes"] for p in figures["fig1"]["points"] if p["plan"] == WIDEST}
    assert sum(memory[128]) > sum(memory[16]), "memory grows with the batch"
    assert {point["load"] for point in figures["fig3"]["points"]} >= {0.0, 0.1, 0.95}
    for name in ("fig1", "fig2", "fig3"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_latency_bends_near_saturation_in_the_shipped_measurement() -> None:
    points = [p for p in json.loads(reproduce("fig3", "--json"))["fig3"]["points"] if p["plan"] == WIDEST]
    latency = {point["load"]: point["latency_mean_s"] for point in points}
    assert latency[0.5] < 1.5 * latency[0.1]
    assert latency[0.95] > 2 * latency[0.1]


def test_tables_are_simulated_where_no_gpu_is_asked_for() -> None:
    rows = json.loads(reproduce("tables", "--scenario", "h200", "--seconds", "0.2", "--json"))["tables"]
    assert rows["live"] == []
    assert [row["router"] for row in rows["simulated"]] == [
        "random", "ppo-efficient", "ppo-balanced", "ppo", "drift-plus-penalty:v=0.7", "goal"
    ]  # fmt: skip


def test_algorithm_1_loads_scales_up_refuses_and_unloads(tmp_path: Path) -> None:
    result = json.loads(reproduce("algorithm1", "--out", str(tmp_path), "--json"))["algorithm1"]
    kinds = {name: {mark["kind"] for mark in one["marks"]} for name, one in result["servers"].items()}
    assert kinds["busy"] >= {"first instance", "blocked by utilization"}
    assert kinds["small"] >= {"first instance", "scale-up", "unload", "blocked by memory"}
    assert (tmp_path / "algorithm1.png").stat().st_size > 10_000


def test_a_table_is_printed_beside_the_papers_figures() -> None:
    tables = json.loads(reproduce("table4", "--seeds", "1", "--seconds", "0.3", "--workers", "1", "--json"))
    assert tables["table4"]["paper"]["accuracy, %"] == "70.30"
    trained = tables["table4"]["summaries"]["PPO, state (1)"]
    assert [row["router"] for row in trained] == [f"ppo:paper-efficient-{seed}" for seed in range(3)]
    assert "PPO that sees the head, v=1" in tables["table4"]["here"]
    assert "70.30" in reproduce("table4", "--seeds", "1", "--seconds", "0.2", "--workers", "1")


def own_rewards(weighting: str) -> dict[str, float]:
    """What policies earn on one reward in a short episode: constant, random, and those trained for it."""
    rows = yardstick.rewards(weighting, seconds=1.5, seed=40, seeds=1, workers=1, others=("random",))
    return {row.router: row.reward for row in rows}


@pytest.mark.parametrize("weighting", ["efficient", "latency"])
def test_what_ppo_learned_from_state_1_earns_more_than_the_best_constant_policy_and_random(
    weighting: str,
) -> None:
    reward = own_rewards(weighting)
    learned = [reward[f"ppo:paper-{weighting}-{number}"] for number in range(3)]
    assert reward["random"] < reward["constant"] < sum(learned) / 3
    assert reward["random"] < min(learned)


def test_what_ppo_learned_for_the_balanced_reward_earns_more_than_random() -> None:
    reward = own_rewards("balanced")
    assert reward["random"] < min(reward[f"ppo:paper-balanced-{number}"] for number in range(3))


def test_one_policy_stands_beside_rivals_at_several_settings_on_clusters_of_any_size() -> None:
    words = ("scale", "--seeds", "1", "--seconds", "0.02", "--workers", "1", "--json")
    cases = json.loads(reproduce(*words))["scale"]["cases"]
    assert [label.split(",")[0] for label in cases] == ["paper", "edge-12", "fleet-64"]
    routers = [[row["router"] for row in rows] for rows in cases.values()]
    assert all(
        {"sed:share=0.5", "drift-plus-penalty:v=2", "goal", "ppo:v=2", "ppo:v=20"} <= {*names}
        for names in routers
    )


def test_a_table_of_goals_says_which_goal_each_row_has() -> None:
    shown = reproduce("goals", "--seeds", "1", "--seconds", "0.1", "--workers", "1")
    assert "goal[p99<=60ms]" in shown
    assert "goal[accuracy>=75, min energy]" in shown


def test_between_two_settings_of_the_rival_its_front_is_a_line() -> None:
    trace = simulate(load_scenario("paper", accuracy="paper").with_load(rate_per_s=800.0, seconds=0.2), "sed")
    row = trace.summary
    settings = [(0.05, 0.70), (0.10, 0.72), (0.12, 0.71)]
    compared = [
        Compared(summary=replace(row, router=name, latency_p99_s=p99_s, accuracy=share), ci95={}, trace=trace)
        for name, (p99_s, share) in zip(FRONT, settings, strict=False)
    ]
    assert front_accuracy(compared, 0.075, of="drift-plus-penalty") == pytest.approx(0.71)
    assert front_accuracy(compared, 0.11, of="drift-plus-penalty") == pytest.approx(0.72)
    assert front_accuracy(compared, 0.5, of="drift-plus-penalty") is None
    assert front_accuracy(compared, 0.04, of="drift-plus-penalty") is None


def test_every_reproduction_is_named_in_the_help() -> None:
    shown = reproduce("--help")
    for name in paper_run.REPRODUCTIONS:
        assert name in shown


def test_a_name_that_does_not_exist_is_an_error_in_one_line() -> None:
    with pytest.raises(SlimError, match="table9"):
        reproduce("table9")
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "table9"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("run.py: unknown reproduction 'table9'")
    assert done.stderr.count("\n") == 1
