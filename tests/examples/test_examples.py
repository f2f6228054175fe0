"""The examples run unchanged and print what they should."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from served import Served, serve

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_01_no_request_is_lost_when_a_server_dies() -> None:
    lines = said("01_simulate.py").splitlines()
    came, answered, lost = map(int, re.findall(r"\d+", lines[0]))
    assert (answered, lost) == (came, 0)
    assert re.match(r"accuracy \d\d\.\d%, which is \d\d\.\d% of what any router could reach", lines[1])
    assert lines[2].startswith("latency p50")


def test_02_routers_that_look_come_nearer_to_the_bound() -> None:
    lines = said("02_compare.py").splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["random", "sed", "drift-plus-penalty"]
    assert all("±" in line for line in lines[:3])
    assert lines[3] == "closest to the bound: drift-plus-penalty"


def test_03_jobs_are_done_sooner_than_in_order_of_arrival() -> None:
    lines = said("03_schedule_training_jobs.py").splitlines()
    mean_h = {line.split()[0]: float(line.split()[3]) for line in lines}
    assert list(mean_h) == ["fifo", "tiresias", "dally"]
    assert mean_h["dally"] < mean_h["fifo"]


def test_04_a_router_of_your_own_runs_beside_ours() -> None:
    ours, own = said("04_your_own_router.py").splitlines()
    assert ours.startswith("random")
    assert own.startswith("CalmRouter")
    assert float(own.split()[1][:-1]) > float(ours.split()[1][:-1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = serve(tmp_path_factory.mktemp("served"))
    yield running
    assert running.stop() == 0


def test_05_a_server_keeps_to_the_terms_of_a_request(served: Served) -> None:
    lines = said("05_serve_and_query.py", f"http://{served.http}").splitlines()
    assert lines[0] == "ready: True"
    assert len(lines) == 4
    assert lines[2].endswith("plan 0.25,0.25,0.25,0.25")


def test_06_a_router_trained_for_seconds_is_quicker_than_random() -> None:
    reward, random, trained = said("06_train_a_router.py").splitlines()
    assert re.fullmatch(r"mean reward: \S+ at first, \S+ after 20 updates", reward)
    mean_ms = [int(re.findall(r"(\d+) ms", line)[0]) for line in (random, trained)]
    assert mean_ms[1] < mean_ms[0]


@pytest.mark.slow
def test_07_the_notebook_runs_from_top_to_bottom_and_says_what_it_said() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(EXAMPLES / "07_look_at_a_run.ipynb", as_version=4)
    before = [spoken(cell) for cell in book.cells]
    nbclient.NotebookClient(book, timeout=120).execute()
    after = [spoken(cell) for cell in book.cells]
    assert [shape(text) for text in after] == [shape(text) for text in before]
    assert re.match(r"\d+ requests arrived, \d+ were answered, 0 were lost", after[2])
    pictures = [
        out for cell in book.cells for out in cell.get("outputs", []) if "image/png" in out.get("data", {})
    ]
    assert len(pictures) == 2


def spoken(cell: Any) -> str:
    """Return what a cell printed."""
    return "".join(out.text for out in cell.get("outputs", []) if out.get("name") == "stdout")


def shape(text: str) -> str:
    """Return the words without the numbers."""
    return re.sub(r"(server-)?[\d.]+%?", "#", re.sub(" +", " ", text))
