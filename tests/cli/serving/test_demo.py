"""`slim demo`, short: two routers, same arrivals, a folder with everything, nothing left running."""

import json
from pathlib import Path

import pytest

from command_line import CliRunner
from served import CONFIG
from slimsched.cli.serving.demo import random_holds_per_s
from slimsched.core.log import Log
from slimsched.serving.options import SERVING
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.run_folder import read_run


def children() -> set[str]:
    """The processes that this one has started, but for those that keep servers of tests warm."""
    found = {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
    return {pid for pid in found if "warm_start" not in Path(f"/proc/{pid}/cmdline").read_text()}


def test_the_demo_compares_reports_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIM_DATA", raising=False)
    config, out, before = tmp_path / "two.toml", tmp_path / "out", children()
    config.write_text(CONFIG)
    options = ["--config", str(config), "--seconds", "1", "--load", "0.02", "--deadline-ms", "5000"]
    options += ["--out", str(out), "--json"]
    found = CliRunner().invoke(["demo", *options])
    assert found.exit_code == 0, found.output
    printed = json.loads(found.stdout)
    assert [row["router"] for row in printed["runs"]] == ["random", SERVING]
    assert printed["examples"] == "random examples"
    assert "measured table" in printed["runs"][0]["accuracy_source"]
    assert len({row["arrived"] for row in printed["runs"]}) == 1
    assert json.loads((out / "comparison.json").read_text()) == printed["runs"]
    kept = read_run(out)
    assert kept.about.config["gateway"]["early_drop"]
    log = Log(out / "goal" / "events.jsonl.gz")
    assert log.header.setting["router"] == SERVING
    assert sum(1 for _ in log.entries()) > 10
    replayed = CliRunner().invoke(["replay", str(out), "--json"])
    assert replayed.exit_code == 0, replayed.output
    found = json.loads(replayed.stdout)
    assert found["same"]
    assert found["machines"] == 2 * 3, "for each router the gateway and two servers"
    assert all(one["ended"] == "closed" and one["decisions"] > 3 for one in found["logs"].values())
    assert (out / "plot.png").stat().st_size > 10_000
    assert children() <= before


def test_random_cannot_hold_more_than_the_slowest_server_bears() -> None:
    scenario = load_scenario("paper")
    holds = random_holds_per_s(scenario.cluster)
    beyond = simulate(scenario.with_load(rate_per_s=1.5 * holds, seconds=3.0), "random", seed=0).summary
    assert beyond.completed < 0.9 * beyond.arrived
