"""Figures from the shipped measurement, and the measured scenario: both need no GPU."""

import json
from pathlib import Path

from typer.testing import CliRunner

from cluster import MODEL, key
from slimsched.cli.app import app
from slimsched.serving.execution.scenario_file import CONFIGS, load_scenario, read_profile
from slimsched.serving.execution.simulated.simulation import simulate

WIDEST = "1.0,1.0,1.0,1.0"


def test_the_shipped_figures_are_drawn_and_listed(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["reproduce", "fig1", "fig2", "fig3", "--out", str(tmp_path), "--json"])
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    assert figures["fig1"]["device"]["gpu"] == "NVIDIA H200"
    memory = {p["batch"]: p["segment_bytes"] for p in figures["fig1"]["points"] if p["plan"] == WIDEST}
    assert sum(memory[128]) > sum(memory[16]), "memory grows with the batch"
    assert {point["load"] for point in figures["fig3"]["points"]} >= {0.0, 0.1, 0.95}
    for name in ("fig1", "fig2", "fig3"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_latency_bends_near_saturation_in_the_shipped_measurement() -> None:
    found = CliRunner().invoke(app, ["reproduce", "fig3", "--json"])
    points = [p for p in json.loads(found.stdout)["fig3"]["points"] if p["plan"] == WIDEST]
    latency = {point["load"]: point["latency_mean_s"] for point in points}
    assert latency[0.5] < 1.5 * latency[0.1]
    assert latency[0.95] > 2 * latency[0.1]


def test_a_smaller_share_of_the_gpu_is_slower_where_it_matters() -> None:
    records = [read_profile(CONFIGS / "profiles" / f"h200-{share}.json") for share in (100, 50, 25)]
    shares = [record.profile(MODEL) for record in records]
    times = [profile.latency_s(key(0, 1.0), 256) for profile in shares]
    assert times == sorted(times)
    assert times[2] > 2 * times[0]
    for profile in shares:
        assert profile.element_bytes == 2


def test_the_measured_scenario_simulates() -> None:
    scenario = load_scenario("h200").with_load(rate_per_s=500.0, seconds=0.5)
    assert [host.mps_percentage for host in scenario.hosts if host is not None] == [100, 50, 25]
    row = simulate(scenario, "sed", drain=True).summary
    assert row.completed == row.arrived > 100


def test_tables_are_simulated_where_no_gpu_is_asked_for() -> None:
    found = CliRunner().invoke(
        app, ["reproduce", "tables", "--scenario", "h200", "--seconds", "0.2", "--json"]
    )
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["tables"]
    assert rows["live"] == []
    assert [row["router"] for row in rows["simulated"]] == [
        "random", "ppo-efficient", "ppo-balanced", "ppo", "drift-plus-penalty:v=0.7", "goal"
    ]  # fmt: skip


def test_algorithm_1_loads_scales_up_refuses_and_unloads(tmp_path: Path) -> None:
    given = ["reproduce", "algorithm1", "--out", str(tmp_path), "--json"]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)["algorithm1"]
    kinds = {name: {mark["kind"] for mark in one["marks"]} for name, one in result["servers"].items()}
    assert kinds["busy"] >= {"first instance", "blocked by utilization"}
    assert kinds["small"] >= {"first instance", "scale-up", "unload", "blocked by memory"}
    assert (tmp_path / "algorithm1.png").stat().st_size > 10_000
