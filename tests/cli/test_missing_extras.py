"""Without the optional packages every command says in one line what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

import slimsched
from slimsched.cli.failure import EXTRAS

CODE = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from slimsched.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def without(hidden: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as if these modules were not installed."""
    command = [sys.executable, "-c", CODE.format(hidden=hidden), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["serve"], "serve"),
        (["load", "--seconds", "0.1"], "serve"),
        (["demo"], "serve"),
        (["validate"], "serve"),
        (["profile", "--out", "cpu.json"], "torch"),
        (["model", "info"], "torch"),
        (["model", "new", "mine"], "torch"),
        (["router", "train"], "learn"),
        (["reproduce", "fig1", "--out", "."], "plot"),
        (["data", "check", "--data", "pictures"], "torch"),
        (["simulate", "--seconds", "0.1", "--plot", "run.png"], "plot"),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_line(
    words: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures" / "one").mkdir(parents=True)
    (tmp_path / "pictures" / "one" / "a.png").write_bytes(b"not read")
    done = without(list(EXTRAS), *words)
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        assert f"slim-scheduler[{extra}]" in done.stderr.splitlines()[-1], done.stderr
        assert done.returncode in (1, 2)
    else:
        assert words[:2] in (["model", "info"], ["model", "new"]), "it works without any extra"


def test_the_client_needs_neither_torch_nor_the_server(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (40, 30)).save(tmp_path / "photo.png")
    others = [name for name in EXTRAS if name != "PIL"]
    url = ("--url", "http://127.0.0.1:9")
    done = without(others, "client", str(tmp_path / "photo.png"), *url)
    assert "no answer from http://127.0.0.1:9" in done.stderr, done.stderr
    done = without(list(EXTRAS), "client", str(tmp_path / "photo.png"), *url)
    assert "slim-scheduler[client]" in done.stderr, done.stderr


def test_help_needs_no_extra() -> None:
    for words in ([], ["serve"], ["model", "train"], ["jobs", "train"], ["router", "train"]):
        assert without(list(EXTRAS), *words, "--help").returncode == 0


def test_type_checkers_see_the_types_of_the_package() -> None:
    assert (Path(slimsched.__file__).parent / "py.typed").is_file()
