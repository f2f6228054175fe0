"""`slim jobs whatif` on records made by hand."""

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from jobs.workloads import job, simulation
from slimsched.cli.jobs.app import app
from slimsched.core.config import SlimError
from slimsched.jobs.domain import Machine, Topology
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.telemetry import histories

COLUMNS = "JobID|JobName|User|Partition|Submit|Start|End|State|AllocTRES|TimelimitRaw|NodeList"
BEGIN = datetime(2026, 11, 1)


def files(folder: Path, jobs: list[tuple[str, str, float, float, float, int, str]]) -> list[str]:
    """Write Slurm's files for two racks of two machines with 4 GPUs; a job ends with its GPUs and place."""
    (folder / "slurm.conf").write_text("SchedulerType=sched/builtin\nNodeName=n[1-4] Gres=gpu:4\n")
    (folder / "topology.conf").write_text("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n")

    def time(hours: float) -> str:
        return (BEGIN + timedelta(hours=hours)).isoformat()

    rows = [
        f"{i}|{name}|{user}|main|{time(came)}|{time(start)}|{time(end)}|COMPLETED|gres/gpu={gpus}|120|{nodes}"
        for i, (name, user, came, start, end, gpus, nodes) in enumerate(jobs)
    ]
    (folder / "sacct.txt").write_text("\n".join([COLUMNS, *rows]) + "\n")
    named = {"--sacct": "sacct.txt", "--nodes": "slurm.conf", "--topology": "topology.conf"}
    out = ["--out", str(folder / "page.html")]
    return [word for option, name in named.items() for word in (option, str(folder / name))] + out


def ask(*arguments: str) -> dict:
    result = CliRunner().invoke(app, ["whatif", *arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


QUEUE = [
    ("bert-1", "ann", 0.0, 0.0, 2.0, 12, "n[1-3]"),
    ("bert-2", "ann", 0.1, 2.0, 4.0, 8, "n[1-2]"),
    ("lm", "bob", 0.2, 2.0, 3.0, 2, "n3"),
    ("lm", "bob", 0.3, 2.0, 3.0, 4, "n[3-4]"),
]


def test_the_present_is_checked_and_the_alternatives_follow(tmp_path) -> None:
    found = ask(*files(tmp_path, QUEUE))
    assert found["present"] == "fifo"
    assert (found["jobs"], found["users"], found["models_named"], found["seeds"]) == (4, 2, 4, 1)
    assert found["agrees"]
    assert found["differences"]["wait_mean_s"] == pytest.approx(0.0, abs=1e-9)
    assert found["differences"]["makespan_s"] == pytest.approx(0.0, abs=1e-9)
    assert [(one["policy"], one["world"]) for one in found["outcomes"]] == [
        ("fifo", "as it is"),
        ("fit-first", "as it is"),
        ("tiresias", "as it is"),
        ("dally", "as it is"),
        ("fifo", "one rack"),
        ("dally", "one rack"),
        ("fifo", "fast network"),
        ("dally", "fast network"),
    ]
    assert {gain["group"] for gain in found["by_user"]} == {"ann", "bob"}
    page = (tmp_path / "page.html").read_text()
    for words in ("agrees with the records", "Who gains, by user", "Who gains, by size", "told durations"):
        assert words in page


def test_a_job_that_ran_apart_is_taken_to_be_faster_together(tmp_path) -> None:
    apart = [("lm", "ann", 0.0, 0.0, 10.0, 4, "n1,n3")]
    found = ask(*files(tmp_path, apart), "--policies=dally")
    now, then = (one["row"]["summary"] for one in found["outcomes"][:2])
    assert now["jct_mean_s"] == pytest.approx(36000.0)
    assert then["jct_mean_s"] < 36000.0 / 1.5
    for figures in ("simulated", "modelled"):
        assert found[figures]["jct_mean_s"] == pytest.approx(36000.0, rel=1e-3)


def a_full_cluster() -> list[tuple[str, str, float, float, float, int, str]]:
    """Sixty gangs in strict order, many as large as a rack; those that train `lm` share the uplinks."""
    rng = random.Random(3)
    machines = [Machine(name=f"n{i}", rack="ab"[(i - 1) // 2], gpus=4) for i in range(1, 5)]
    jobs = [
        job(str(i), rng.choice((1, 2, 4, 8, 8, 16)), at_s=30.0 * i, service_s=round(rng.uniform(300, 1500)))
        for i in range(60)
    ]
    asleep = [msgspec.structs.replace(one, model="") for one in jobs]
    past = histories(simulation(POLICIES.make("fifo"), asleep, Topology(machines)).run())
    rows = []
    for one in past.values():
        times = [at_s / 3600 for at_s in (one.submitted_s, one.runs[0].start_s, one.runs[0].end_s)]
        where = ",".join(name for name, _ in one.runs[0].placement)
        rows.append((rng.choice(("lm", "bert", "x")), "ann", *times, one.job.gpus, where))
    return rows


def test_the_present_with_models_agrees_with_a_full_cluster(tmp_path) -> None:
    found = ask(*files(tmp_path, a_full_cluster()), "--policies=dally", "--models=none")
    for name in ("wait_mean_s", "makespan_s"):
        assert found["modelled"][name] == pytest.approx(found["recorded"][name], rel=0.05)


def test_models_that_nobody_names_are_drawn_or_left_out(tmp_path) -> None:
    unnamed = [("train", user, came, start, end, gpus, "") for _, user, came, start, end, gpus, _ in QUEUE]
    drawn = ask(*files(tmp_path, unnamed), "--models=bert,lm", "--seeds=2")
    assert (drawn["models_named"], drawn["models_drawn"], drawn["seeds"]) == (0, ["bert", "lm"], 2)
    silent = ask(*files(tmp_path, unnamed), "--models=none")
    assert silent["seeds"] == 1
    assert silent["outcomes"][0]["row"]["summary"]["comm_overhead"] < 1e-3


def test_other_racks_and_an_earlier_time_can_be_asked_for(tmp_path) -> None:
    arguments = files(tmp_path, QUEUE)
    (tmp_path / "other.conf").write_text("SwitchName=x Nodes=n1,n3\nSwitchName=y Nodes=n2,n4\n")
    found = ask(*arguments, f"--also={tmp_path / 'other.conf'}", "--days=0.01", "--network=fast")
    assert found["jobs"] == 3  # the first came too early to count, but held its GPUs
    assert [one["world"] for one in found["outcomes"]][-4:-2] == ["other.conf", "other.conf"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policies=best"], "unknown policy 'best'"),
        (["--network=slow"], "unknown network 'slow'"),
        (["--models=mine"], "unknown training model 'mine'"),
        (["--partition=debug"], "unknown partition 'debug'"),
        (["--policies=,"], "no policy given"),
    ],
)
def test_a_wrong_question_is_refused_in_one_line(arguments: list[str], says: str, tmp_path) -> None:
    unnamed = [("train", *rest) for _, *rest in QUEUE]
    with pytest.raises(SlimError, match=says) as caught:
        ask(*files(tmp_path, unnamed), *arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
