"""The help of every command, on a terminal of 80 columns."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from command_line import slim
from slimsched import __version__
from slimsched.cli.app import HOMES, LINES, command_line
from slimsched.core.config import read_toml
from slimsched.serving.routers.registry import ROUTERS
from slimsched.serving.scenario.files import CONFIGS, scenario_names


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
        servers = read_toml(CONFIGS / f"{name}.toml")["server"]
        assert (name in live_scenario) == all("host" in server for server in servers)


def test_every_router_has_a_line() -> None:
    lines = dict(line.split("  ", 1) for line in slim("router", "list").out.splitlines() if "  " in line)
    assert lines.keys() >= ROUTERS.keys()
    assert all(len(line) <= 80 for line in slim("router", "list").out.splitlines())


def test_the_line_of_each_command_is_the_first_paragraph_of_its_help() -> None:
    whole = command_line().commands
    assert list(whole) == list(HOMES) == list(LINES)
    assert {name: one.help.partition("\n\n")[0] for name, one in whole.items()} == LINES


LOADED = """
import json, sys
from slimsched.cli.app import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""


def loaded_by(*words: str) -> tuple[int, set[str]]:
    """Return the exit code of a command in a process of its own, and the modules that it imported."""
    done = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, timeout=60)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(("words", "code"), [("--help", 0), ("nope", 2), ("--nope", 2), ("--version", 0)])
def test_help_and_mistakes_load_no_command(words: str, code: int) -> None:
    ended, modules = loaded_by(words)
    assert ended == code
    assert not modules & {"torch", "scipy", "numpy", "pydantic"}
    assert sum(name.startswith("slimsched") for name in modules) <= 5
