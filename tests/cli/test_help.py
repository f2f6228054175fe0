"""The help of every command, on a terminal of 80 columns."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from command_line import slim
from slimsched import __version__
from slimsched.cli.app import command_line
from slimsched.serving.routers.registry import ABOUT, ROUTERS
from slimsched.serving.scenario.files import read_scenario, scenario_names


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*path, name))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("words", list(commands(command_line())), ids=" ".join)
def test_help_names_no_python_types_and_clips_nothing(words: tuple[str, ...]) -> None:
    done = slim(*words, "--help")
    assert done.code == 0
    for line in done.out.splitlines():
        assert len(line) <= 80
        assert not re.search(r"<(bool|str|int|float|path|list)", line), line
        assert not re.search(r"(?<!,)…", line), line
        assert "™" not in line


def test_the_version_is_printed() -> None:
    assert slim("--version").out == f"slim-scheduler {__version__}\n"


def test_a_paragraph_is_not_broken_in_mid_sentence() -> None:
    text = slim("profile", "--help").out
    assert re.search(r"keeps what was\s+measured\. On a GPU, batches also run two and four", text)


def test_each_command_lists_the_scenarios_that_it_can_run() -> None:
    simulated = " ".join(slim("simulate", "--help").out.split())
    live = " ".join(slim("serve", "--help").out.replace("│", " ").split())
    live_scenario = live.partition("--scenario")[2].partition("--config")[0]
    for name in scenario_names():
        assert name in simulated
        servers = read_scenario(name)[0]["server"]
        assert (name in live_scenario) == all("host" in server for server in servers)


def test_every_router_has_a_line() -> None:
    lines = dict(line.split("  ", 1) for line in slim("router", "list").out.splitlines() if "  " in line)
    assert lines.keys() >= ROUTERS.keys()
    assert ABOUT.keys() == ROUTERS.keys()
    assert all(len(line) <= 80 for line in slim("router", "list").out.splitlines())
