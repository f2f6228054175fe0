"""The house stays small: chapters, not crumbs, and few of them between a request and its answer.

Each figure has a ceiling, today's value, which may only fall, and a goal. Who makes a figure smaller lowers
its ceiling in the same commit; `python tests/house.py` prints the figures. Who must raise one says in a
decision record what it is worth.
"""

import http.client
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from house import House, modules_of_a_simulated_request, ours
from served import CONFIG, Served


class Ceiling(NamedTuple):
    """What a figure may be today, and what it shall become."""

    today: int
    goal: int


CEILINGS = {
    "modules": Ceiling(190, 190),
    "lines of Python": Ceiling(51_150, 50_000),
    "lines of C++": Ceiling(2_300, 2_300),
    "lines of the longest module": Ceiling(900, 900),
    "lines of the longest function": Ceiling(60, 60),
    "lines of the longest class": Ceiling(700, 700),
    "modules in the largest folder": Ceiling(12, 12),
    "class names that stand for several things": Ceiling(0, 0),
    "groups of modules that import each other": Ceiling(0, 0),
    "small modules that only one neighbour imports": Ceiling(0, 0),
    "modules that a simulated request enters": Ceiling(40, 40),
    "modules that an HTTP request enters": Ceiling(35, 35),
}

OWN_ROOM: dict[str, str] = {}
"""Small modules with one importer that stay as they are, each with the reason."""


@pytest.fixture(scope="module")
def house() -> House:
    return House()


def test_no_figure_of_the_tree_rises(house: House) -> None:
    figures = house.figures()
    figures["small modules that only one neighbour imports"] -= len(OWN_ROOM)
    too_high = {name: value for name, value in figures.items() if value > CEILINGS[name].today}
    assert not too_high, (
        f"{too_high}, ceilings {[CEILINGS[name].today for name in too_high]}: merge modules, take something "
        "out, or say in a decision record why the ceiling rises"
    )


def test_every_ceiling_is_at_or_above_its_goal() -> None:
    assert all(ceiling.today >= ceiling.goal for ceiling in CEILINGS.values())


def test_a_module_that_keeps_its_own_room_is_still_a_small_one_with_one_importer(house: House) -> None:
    assert set(OWN_ROOM) <= set(house.satellites())
    assert all(OWN_ROOM.values())


def test_a_simulated_request_enters_few_modules() -> None:
    entered = modules_of_a_simulated_request()
    assert len(entered) <= CEILINGS["modules that a simulated request enters"].today, sorted(entered)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_server: Callable[..., Served]) -> "Noted":
    """A server of which every process notes the modules that it enters."""
    folder = tmp_path / "hops"
    folder.mkdir()
    hops = str(Path(__file__).with_name("hops"))
    monkeypatch.setenv("SLIM_PURE", "1")
    monkeypatch.setenv("SLIM_HOPS", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([hops, *filter(None, [os.environ.get("PYTHONPATH")])]))
    config = tmp_path / "one-core.toml"
    config.write_text(CONFIG.partition('[[server]]\nname = "two"')[0])
    return Noted(own_server("--config", str(config)), folder)


class Noted:
    """A server whose processes note which modules run, from one moment to another."""

    def __init__(self, served: Served, folder: Path) -> None:
        self._served, self._folder = served, folder
        self._processes = {served.process.pid, *served.children()}

    def infer(self, number: int) -> set[str]:
        """Ask for one inference and return the modules that ran meanwhile, in whichever process."""
        window = self._folder / f"window-{number}"
        window.touch()
        self._wait(f"open-window-{number}-*")
        infer(self._served.http)
        window.unlink()
        files = self._wait(f"seen-{number}-*")
        return ours({line for path in files for line in path.read_text().splitlines()})

    def _wait(self, pattern: str) -> list[Path]:
        """Wait until every process has left a file with such a name."""
        give_up_s = time.monotonic() + 30
        while time.monotonic() < give_up_s:
            found = list(self._folder.glob(pattern))
            if {int(path.name.rpartition("-")[2]) for path in found} >= self._processes:
                return found
            time.sleep(0.005)
        raise AssertionError(f"not every process left {pattern}")


def infer(address: str) -> None:
    """Ask for one inference of one image, in the binary format."""
    image = np.zeros((1, 3, 32, 32), np.uint8)
    head = (
        b'{"inputs":[{"name":"images","shape":[1,3,32,32],"datatype":"UINT8",'
        b'"parameters":{"binary_data_size":3072}}],"outputs":[{"name":"classes"}]}'
    )
    connection = http.client.HTTPConnection(address, timeout=30)
    headers = {"inference-header-content-length": str(len(head))}
    connection.request("POST", "/v2/models/slimresnet/infer", head + image.tobytes(), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


def test_an_http_request_read_in_python_enters_few_modules(noted: Noted) -> None:
    """What runs in each of several windows of one request; what runs from time to time is left out."""
    noted.infer(0)  # the first one imports and makes things
    entered = set.intersection(*(noted.infer(number) for number in range(1, 7)))
    assert "serving/gateway/gateway" in entered
    assert len(entered) <= CEILINGS["modules that an HTTP request enters"].today, sorted(entered)
