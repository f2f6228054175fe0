"""One Ray cluster of three raylets for all tests here; SLIM_REQUIRE_RAY=1 makes Ray's absence a failure."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from served import Served, serve

if TYPE_CHECKING:
    from raylets import Raylets

HERE = Path(__file__).parent
SHARED = "shared by several gateways"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that need the cluster in one process, and leave them out where there is no Ray."""
    there = importlib.util.find_spec("ray") is not None
    if not there and os.environ.get("SLIM_REQUIRE_RAY") == "1":
        raise pytest.UsageError("SLIM_REQUIRE_RAY=1, but Ray is not installed: pip install -e '.[ray]'")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.xdist_group("ray"))
            if not there:
                item.add_marker(pytest.mark.skip(reason="Ray is not installed (extra 'ray')"))


@pytest.fixture(scope="session")
def raylets() -> "Iterator[Raylets]":
    from raylets import Raylets

    started = Raylets()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def served(raylets: "Raylets", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same `slim serve` as everywhere, on Ray."""
    folder = tmp_path_factory.mktemp("ray")
    running = serve(folder, "--engine", "ray", "--address", raylets.address, "--attach", SHARED)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="session")
def images() -> NDArray[np.uint8]:
    """Eight random images."""
    return np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
