"""Every command in README, CONTRIBUTING and docs: known to the program, and run or with a reason not to be.

`SHORT` says how a command is run here: what is added so that it takes a second (an option given twice counts
as given last), or why it is not run. The longest beginning that fits decides. Options are checked for all.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import CliRunner
from doc_commands import PAGES, ROOT, Command, commands
from served import Served, serve
from slimsched.cli.app import command_line

DATA = os.environ.get("SLIM_DATA", "")
COMMANDS = [command for page in PAGES for command in commands(page)]
MEASUREMENTS = [command for page in sorted((ROOT / "benchmarks").glob("*.md")) for command in commands(page)]
"""Those of the pages of figures: known, and never run here."""


@dataclass(frozen=True)
class Run:
    """Run it with these words added; `data`: only where SLIM_DATA names a folder."""

    added: str = ""
    data: bool = False


@dataclass(frozen=True)
class Ask:
    """Run it against the server of these tests, with these words added."""

    added: str = ""


@dataclass(frozen=True)
class Not:
    """Not run here; `where` is the test that does it instead, if there is one."""

    why: str
    where: str = ""


QUICK = ("README.md", "docs/index.md")
"""The pages that a newcomer follows; the commands of all others are slow tests."""

SLURM = Not("needs a Slurm", where="tests/jobs/slurm")
SHORT: dict[str, Run | Ask | Not] = {
    "slim simulate": Run("--rate 300"),
    "slim simulate --scenario paper --router random": Run("--rate 300 --seconds 0.5"),
    "slim simulate --scenario paper --router goal": Run("--rate 600"),
    "slim simulate --log": Run("--rate 300 --seconds 0.5"),
    "slim compare": Run("--rate 600 --seconds 0.2 --warmup 0 --seeds 1 --workers 1"),
    "slim compare --live --scenario h200": Not("needs a GPU", where="tests/cli/test_bad_inputs.py"),
    "slim compare --live --config DIR/laptop.toml": Not(
        "needs what the lines before make", where="tests/serving/measure/test_live_comparison.py"
    ),
    "slim compare --engine ray": Not("needs a Ray", where="tests/serving/ray"),
    "slim servers": Not("needs a Ray", where="tests/serving/ray"),
    "slim bound": Run(),
    "slim machine": Run(),
    "python tests/hostile/chaos.py": Not("takes its minutes", where="tests/hostile/test_chaos.py"),
    "python tests/hostile/fuzz": Not("takes a minute, with sanitizers", where="tests/hostile/fuzz"),
    "slim replay": Run(),
    "slim explain": Run(),
    "slim report": Run(),
    "python benchmarks/paper/run.py": Run("--seconds 0.02 --seeds 1 --workers 1"),
    "python benchmarks/paper/run.py fig1 fig2 fig3 --live": Not(
        "needs a GPU", where="tests/benchmarks/test_paper.py"
    ),
    "python benchmarks/paper/run.py algorithm1 --live": Not(
        "takes half a minute, or needs a GPU", where="tests/benchmarks/test_paper.py"
    ),
    "python benchmarks/paper/run.py tables": Not("live needs a GPU", where="tests/benchmarks/test_paper.py"),
    "python benchmarks/paper/run.py robustness": Run("--seconds 0.02 --seeds 1 --workers 1", data=True),
    "slim router": Not("takes minutes", where="tests/serving/learning/test_router_commands.py"),
    "slim jobs compare": Run("--jobs 60 --seeds 1 --workers 1"),
    "slim jobs compare --trace helios": Run("--jobs 60 --seeds 1 --workers 1", data=True),
    "slim jobs simulate": Run(),
    "slim jobs explain": Run("--jobs 60"),
    "slim jobs models": Run(),
    "slim jobs whatif": Not("needs the records of a Slurm", where="tests/cli/jobs/test_whatif.py"),
    **dict.fromkeys([f"slim jobs {name}" for name in ("run", "submit", "victims", "explain 7")], SLURM),
    **dict.fromkeys(["scripts/local-slurm"], SLURM),
    "slim model pareto": Run(),
    "slim model train": Not(
        "trains on CIFAR-100 for minutes on a GPU", where="tests/models/test_training.py"
    ),
    "slim model train --data photos/": Run(),
    "slim model evaluate": Not("8 CPU-minutes, CIFAR-100", where="tests/models/test_evaluation.py"),
    "slim model evaluate runs/photos": Run(),
    "slim model new mymodel": Run(),
    "slim model check mymodel": Run(),
    "slim model evaluate mymodel --agreement": Run(),
    "slim model evaluate mymodel --data": Not("needs the reader's data", where="tests/models"),
    "slim model info mymodel": Run(),
    "slim model info slimvit": Run(),
    "slim model profile": Not("measures this machine", where="tests/models"),
    "slim model profile mymodel": Run("--batches 1,2 --repeats 2"),
    "slim serve": Not("the server of these tests is `make serve`", where="tests/serving/api"),
    "slim client": Ask("--url http://{http}"),
    "slim load": Ask("--url http://{http} --seconds 1 --rate 10"),
    "slim profile": Not("measures this machine for minutes", where="tests/serving/measure"),
    "slim validate": Not("measures this machine for minutes", where="tests/serving/measure"),
    "slim demo": Not("takes a minute", where="tests/cli/serving/test_demo.py"),
    "curl": Ask(),
    "curl -N": Ask("--max-time 1"),
    "curl -X POST": Not("needs a model repository", where="tests/serving/api/test_repository.py"),
    "open http://127.0.0.1:8000/": Ask(),
    "python3 -": Run(),
    "python examples/": Not("an example", where="tests/examples"),
    "python benchmarks/rivals/learn_order.py": Run("--updates 1 --jobs 200 --cluster racks-64"),
    "python benchmarks/rivals/learn.py": Not("takes minutes", where="tests/benchmarks/test_two_scales.py"),
    "python benchmarks/": Not("a measurement, never a test"),
    "scripts/dashboard-picture": Run(),
    "scripts/reference": Run("--check"),
    "make": Not("make -n says what it would do"),
    "make serve": Ask(),
}
STANDS_FOR = {"N": "2", "NAME": "edge-12", "LOG": "run.jsonl.gz", "FOLDER": "runs/one", "DIR": "data"}
"""What a reader fills in."""


def rule(command: Command) -> Run | Ask | Not | None:
    """The entry of the longest beginning that fits."""
    text = " ".join(command.words)
    fitting = [beginning for beginning in SHORT if text.startswith(beginning)]
    return SHORT[max(fitting, key=len)] if fitting else None


def known(words: list[str]) -> Any:
    """The sub-command of `slim` that the words name."""
    found: Any = command_line()
    for word in words[1:]:
        if not hasattr(found, "commands"):
            break
        assert word in found.commands, f"there is no {word} among {sorted(found.commands)}"
        found = found.commands[word]
    return found


@pytest.mark.parametrize("command", [*COMMANDS, *MEASUREMENTS], ids=str)
def test_every_command_is_known_with_all_its_options(command: Command) -> None:
    words = command.words
    if words[0] == "make":
        done = subprocess.run(
            ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
    elif words[0] != "slim":
        named = [word for word in words[:2] if word.startswith(("scripts/", "examples/", "benchmarks/"))]
        assert all((ROOT / name).is_file() for name in named)
    else:
        found = known(words)
        there = {name for one in found.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        asked = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        if "submit" in words:  # what follows the script is the script's own
            asked -= {"--epochs"}
        assert asked <= there, f"{asked - there} of `{command.text}`; there are {sorted(there)}"


@pytest.mark.parametrize("command", [one for one in COMMANDS if not one.is_a_name], ids=str)
def test_every_command_is_run_or_has_a_reason_not_to_be(command: Command) -> None:
    found = rule(command)
    assert found is not None, "say in SHORT how it is run here, or why it is not"
    if isinstance(found, Not) and found.where:
        assert (ROOT / found.where).exists()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """What `make serve` starts, on free ports and two small servers, for all that the pages show."""
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "serve"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = Command("Makefile", done.stdout.splitlines()[-1], typed=True)
    assert command.words[:2] == ["slim", "serve"]
    running = serve(tmp_path_factory.mktemp("served"), *command.words[2:], "--shared-memory")
    yield running
    assert running.stop() == 0


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages take for granted: a photograph, a scenario, racks, pictures by class."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for name in ("scripts", "examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    recipe = tmp_path / "configs" / "train-folder.toml"
    short = (
        recipe.read_text()
        .replace("epochs = 40", "epochs = 1")
        .replace("least_steps = 600", "least_steps = 1")
    )
    recipe.write_text(short)
    shutil.copy(ROOT / "examples" / "rocket.jpg", tmp_path / "photo.jpg")
    rng = np.random.default_rng(0)
    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    own = re.search(
        r"^```toml\n(.*?)^```$", (ROOT / "docs" / "simulate.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert own is not None
    (tmp_path / "mine.toml").write_text(own[1])
    (tmp_path / "my_racks.csv").write_text("machine,rack,gpus\na,r,8\nb,r,8\n")
    (tmp_path / "my_sacct.txt").write_text(
        "JobID|User|Submit|Start|End|AllocTRES|TimelimitRaw\n"
        "7|ann|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-01T00:02:00|gres/gpu=4|90\n"
    )
    return tmp_path


def as_parameter(page: Path) -> Any:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[] if name in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("page", [as_parameter(page) for page in PAGES])
def test_the_commands_of_a_page_work_one_after_the_other(
    page: Path, desk: Path, request: pytest.FixtureRequest
) -> None:
    left_out = list[str]()
    for command in commands(page):
        found = None if command.is_a_name else rule(command)
        if isinstance(found, Ask | Run) and (missing := what_is_missing(command, found)):
            left_out.append(f"{command} needs {missing}")
        elif isinstance(found, Ask):
            served: Served = request.getfixturevalue("server")
            ask(command, found, served)
        elif isinstance(found, Run):
            run(command, filled_in(command.words) + found.added.split())
    if left_out:
        pytest.skip(f"all ran but: {'; '.join(left_out)}")


def what_is_missing(command: Command, found: Ask | Run) -> str:
    """What a command needs that this machine does not have; '' if nothing."""
    if isinstance(found, Run):
        return "SLIM_DATA" if found.data and not DATA else _program("chromium", "dashboard-picture", command)
    return _program("curl", "curl", command)


def _program(program: str, word: str, command: Command) -> str:
    return program if word in command.words[0] and shutil.which(program) is None else ""


def run(command: Command, words: list[str]) -> None:
    """Our own command in this process, others in one of their own."""
    if words[0] == "slim":
        done = CliRunner().invoke(words[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
        return
    program = [sys.executable] if words[0].startswith(("python", "scripts/")) else []
    words = words[1:] if words[0].startswith("python") else words
    output = re.search(r"> (\S+)", command.text)
    done = subprocess.run([*program, *words], input=command.given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    if output:
        Path(output[1]).write_text(done.stdout)


def ask(command: Command, found: Ask, served: Served) -> None:
    """A client's command, with the address of the server of these tests."""
    if command.words[0] == "make":
        return  # the server itself
    if command.words[0] == "open":
        with urllib.request.urlopen(f"http://{served.http}/", timeout=30) as page:
            assert b"<title>Slim Scheduler</title>" in page.read()
        return
    here = [re.sub(r"(localhost|127\.0\.0\.1):8000", served.http, word) for word in filled_in(command.words)]
    words = here + found.added.format(http=served.http).split()
    if words[0] == "slim":
        run(command, words)
        return
    done = subprocess.run([words[0], "-sS", *words[1:]], capture_output=True, text=True, timeout=60)
    ended_by_us = done.returncode == 28 and "--max-time" in words
    assert done.returncode == 0 or ended_by_us, f"{command}\n{done.stderr}"
    assert done.stdout
    assert '"error"' not in done.stdout, done.stdout


def filled_in(words: list[str]) -> list[str]:
    """What a reader would type for what is left open."""
    swapped = [DATA if word == "~/data" else STANDS_FOR.get(word, word) for word in words]
    return [word.replace(",…", "").replace("mine,", "").removesuffix("…") for word in swapped]


def test_the_python_of_the_api_page_runs_as_it_stands(server: Served) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert snippets
    for snippet in snippets:
        code = re.sub(r"(localhost|127\.0\.0\.1):8000", server.http, snippet)
        code = code.replace("localhost:8001", server.grpc)
        exec(compile(code, "docs/api.md", "exec"), {"images": np.zeros((2, 3, 32, 32), np.uint8)})
