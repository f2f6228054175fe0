"""`slim jobs` from the outside."""

import json

import pytest
from typer.testing import CliRunner

from slimsched.cli.jobs.app import app
from slimsched.kernel.errors import SlimError

KEYS = {
    "policy",
    "jct_mean_s",
    "jct_p50_s",
    "jct_p99_s",
    "makespan_s",
    "wait_mean_s",
    "wait_p99_s",
    "comm_overhead",
    "preemptions",
    "utilization",
    "events_per_wall_s",
}
SMALL = ["--trace", "generated", "--jobs", "40", "--gpus", "200"]


def run(*arguments: str):
    """Run `slim jobs` and return its output; our errors come through."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_compare_gives_the_agreed_keys_with_intervals() -> None:
    rows = json.loads(
        run(
            "compare", "--trace", "generated", "--jobs", "60", "--policies", "fifo,dally", "--seeds", "2",
            "--network", "fast,congested", "--arrivals", "batch,poisson", "--workers", "1", "--json",
        )
    )  # fmt: skip
    assert len(rows) == 8
    for row in rows:
        assert set(row) >= KEYS
        assert row["seeds"] == 2
        assert row["ci95"]["jct_mean_s"] >= 0.0
        assert row["makespan_s"] >= row["makespan_bound_s"] - 1e-6


def test_simulate_writes_a_log_and_a_picture(tmp_path) -> None:
    log, plot = tmp_path / "run.jsonl", tmp_path / "run.png"
    found = json.loads(run("simulate", *SMALL, "--log", str(log), "--plot", str(plot), "--json"))
    assert found["jobs"] == 40
    header, *entries, ending = [json.loads(line) for line in log.read_text().splitlines()]
    assert header["kind"] == "jobs"
    assert len(entries) == ending["entries"] == found["events"] >= 80
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_explain_says_why_a_job_waited() -> None:
    arguments = ["--trace", "generated", "--jobs", "60", "--cluster", "racks-64", "--arrivals", "batch"]
    log = json.loads(run("simulate", *arguments, "--policy", "fifo", "--json"))
    assert log["wait_mean_s"] > 0
    found = json.loads(run("explain", "g40", *arguments, "--policy", "fifo", "--at-s", "1", "--json"))
    assert found["state"] in ("waiting", "running")
    assert found["reason"]
    later = json.loads(run("explain", "g40", *arguments, "--policy", "fifo", "--at-s", "1e9", "--json"))
    assert later["state"] == "finished"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate", "--policy", "best"], "unknown policy 'best'"),
        (["simulate", "--trace", "nowhere.csv"], "no trace at nowhere.csv"),
        (["simulate", "--network", "slow"], "unknown network 'slow'"),
        (["simulate", "--cluster", "nowhere.toml"], "no cluster file"),
        (["simulate", *SMALL, "--quota", "x"], "TENANT=GPUS"),
        (["simulate", "--gpus", "0"], "--gpus is 0"),
        (["compare", "--arrivals", "rain"], "unknown kind of arrivals 'rain'"),
        (["explain", "nobody", *SMALL], "unknown job 'nobody'"),
    ],
)
def test_bad_input_gives_one_clear_line(arguments, says) -> None:
    with pytest.raises(SlimError, match=says) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
