"""`slim jobs` from the outside."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slimsched.cli.jobs.app import app
from slimsched.core.config import SlimError

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


TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"


def trace_of(folder, *models: str) -> str:
    path = folder / "trace.csv"
    path.write_text(TIRESIAS + "".join(f"{i},8,{i},10,{name},100,1\n" for i, name in enumerate(models)))
    return str(path)


def test_a_model_that_nobody_knows_is_named_and_can_be_described(tmp_path) -> None:
    trace = trace_of(tmp_path, "vgg16", "gpt9", "gpt9")
    arguments = ["simulate", "--trace", trace, "--cluster", "tiresias-16", "--json"]
    said = CliRunner().invoke(app, arguments)
    assert "2 jobs train models that are not known (gpt9)" in " ".join(said.stderr.split())
    silent = json.loads(said.stdout)["comm_gpu_s"]
    (tmp_path / "mine.toml").write_text('[[model]]\nname = "gpt9"\ncompute_s = 0.1\ngradient_mb = 2000\n')
    told = CliRunner().invoke(app, [*arguments, "--model-file", str(tmp_path / "mine.toml")])
    assert "not known" not in told.stderr
    assert json.loads(told.stdout)["comm_gpu_s"] > silent
    listed = json.loads(run("models", "--model-file", str(tmp_path / "mine.toml"), "--json"))
    assert listed[-1]["name"] == "gpt9"


def test_every_command_assumes_the_same_network() -> None:
    found = {
        name: option.default
        for name, command in typer.main.get_command(app).commands.items()
        for option in command.params
        if "--network" in option.opts and name != "train"
    }
    assert found.keys() >= {"simulate", "compare", "explain", "models", "run", "victims", "whatif"}
    assert set(found.values()) == {"congested"}


def test_a_table_shows_avoidable_communication_and_who_is_told_durations() -> None:
    shown = run("compare", *SMALL, "--policies", "srtf,dally", "--workers", "1")
    assert "avoidable" in shown
    assert "srtf *" in shown
    assert "dally *" not in shown
    assert "* is told how long jobs take" in shown
    rows = json.loads(run("compare", *SMALL, "--policies", "srtf,dally", "--workers", "1", "--json"))
    assert [row["told_durations"] for row in rows] == [True, False]


def test_explain_asks_the_simulator_or_slurm(tmp_path: Path) -> None:
    empty = tmp_path / "slurm.conf"  # Slurm waits a minute for one that is not there
    empty.touch()
    with pytest.raises(SlimError, match="unknown engine 'pbs'"):
        run("explain", "1", "--engine", "pbs")
    with pytest.raises(SlimError):
        run("explain", "1", "--engine", "slurm", "--conf", str(empty))
