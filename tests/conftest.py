"""Makes tests/*.py importable whatever the folder of a test; a real `slim serve` for whoever asks for one."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import warm_start
from served import Served, load, serve

SHARED = (
    "cluster",
    "browser",
    "attacked",
    "expressed",
    "fronted",
    "library",
    "secured",
    "shared",
    "spoken",
    "server",
    "served",
)
"""Fixtures that start something costly for several tests; pytest-xdist runs these tests in one process."""

SLOW = ("cluster", "browser")
"""A Slurm and a browser wait more than they work: what needs them is slow by nature."""

PROCESSES = "slimsched.serving.live.processes"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests together that share a server, a browser or a Slurm, so that it is started once."""
    for item in items:
        assert isinstance(item, pytest.Function)
        if any(name in item.fixturenames for name in SLOW):
            item.add_marker(pytest.mark.slow)
        name = next((name for name in SHARED if name in item.fixturenames), None)
        if name is not None and item.get_closest_marker("xdist_group") is None:
            (*_, fixture) = item._fixtureinfo.name2fixturedefs[name]
            kind = item.callspec.indices.get(name, "") if hasattr(item, "callspec") else ""
            item.add_marker(pytest.mark.xdist_group(f"{name}-{kind}-{fixture.baseid}"))


@pytest.fixture(autouse=True)
def _warm_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the servers of gateways in this process, except for slow tests: those start them as users do."""
    if PROCESSES in sys.modules and not is_slow(request):
        monkeypatch.setattr(sys.modules[PROCESSES], "subprocess", warm_start.asking(warm_start.warm_servers))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests measure out of the user's cache, also of servers that tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def is_slow(request: pytest.FixtureRequest) -> bool:
    """Whether the test that asks is slow by nature."""
    return request.node.get_closest_marker("slow") is not None


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that leave it as it was."""
    running = serve(tmp_path_factory.mktemp("served"))
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """A server of the test's own, with options of its own."""
    is_warm = not is_slow(request)
    running: list[Served] = []

    def start(*options: str) -> Served:
        running.append(serve(tmp_path, *options, warm=is_warm))
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
