"""The table of slim compare: 80 columns, intervals, and whether goals were kept."""

import re

import pytest

from command_line import slim
from slimsched.cli.table import wrap_spec

SPECS = (
    "goal[accuracy>=75, p99<=80ms, min energy],goal[energy<=40mJ]:in_time=0.5,goal[accuracy>=80, p99<=30ms]"
)


def test_three_goals_fit_eighty_columns_with_intervals_and_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = slim(
        "compare", "--routers", SPECS, "--seconds", "2", "--seeds", "2", "--workers", "1", seconds=120
    )
    assert done.code == 0, done.err
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert "…" not in done.out
    assert "goal" in done.out.splitlines()[2]
    assert "kept" in done.out.splitlines()[3]
    figures = [line for line in done.out.splitlines() if line.startswith("goal[")]
    assert len(figures) == 3
    assert all(line.count("±") == 4 for line in figures)
    assert [line.split()[-1] for line in figures][-1] == "broken"
    assert "± is half the 95 % interval over seeds" in done.out


def test_goal_is_among_the_routers_that_are_compared() -> None:
    done = slim("compare", "--seconds", "0.1", "--workers", "1", seconds=120)
    assert re.search(r"^goal ", done.out, re.MULTILINE)


def test_a_limit_that_was_missed_is_named_with_the_order_of_yielding() -> None:
    done = slim("simulate", "--seconds", "3", "--goal", "accuracy>=80, p99<=30ms", seconds=120)
    said = " ".join(done.out.split())
    assert re.search(r"goal: accuracy>=80 broken: 7\d\.\d\d % \(", said)
    assert "accuracy first, then energy and power, latency last" in said


def test_a_spec_is_broken_before_its_parts() -> None:
    assert wrap_spec("sed") == "sed"
    assert wrap_spec("goal[accuracy>=75, p99<=80ms]:in_time=0.5").splitlines() == [
        "goal[accuracy>=75,",
        " p99<=80ms]",
        " :in_time=0.5",
    ]
