"""Without the optional packages every command says in one line what to install."""

import subprocess
import sys
from pathlib import Path

import slimsched
import without_extras
from slimsched.cli.options import EXTRAS
from without_extras import NEED_NOTHING, NEEDS, names

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


def test_every_command_names_the_extra_that_it_needs_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, without_extras.__file__, "--hide"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_command_is_forgotten() -> None:
    listed = {" ".join(words[:count]) for words in map(str.split, NEEDS) for count in (1, 2)} | NEED_NOTHING
    assert set(names()) - listed == set(), "add it to NEEDS or NEED_NOTHING in tests/without_extras.py"
    assert set(names()) >= NEED_NOTHING


def test_tracing_names_its_extra_before_servers_start() -> None:
    done = without(["opentelemetry"], "serve", "--otel")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "slim-scheduler[otel]" in done.stderr


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
    for words in ([], ["serve"], ["model", "train"], ["jobs", "simulate"], ["router", "train"]):
        assert without(list(EXTRAS), *words, "--help").returncode == 0


def test_type_checkers_see_the_types_of_the_package() -> None:
    assert (Path(slimsched.__file__).parent / "py.typed").is_file()
