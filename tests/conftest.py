"""Makes tests/*.py importable whatever the folder of a test; a real `slim serve` for whoever asks for one."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from served import Served, load, serve


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that leave it as it was."""
    running = serve(tmp_path_factory.mktemp("served"))
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """A server of the test's own, with options of its own."""
    running: list[Served] = []

    def start(*options: str) -> Served:
        running.append(serve(tmp_path, *options))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def load_on() -> Callable[[str], AbstractContextManager[None]]:
    """Puts load on an address for as long as a `with` block runs."""
    return load
