"""The images that the API tests send, and a server for those of the express lines."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from served import Served, serve


@pytest.fixture(scope="session")
def images() -> NDArray[np.uint8]:
    """Eight random images."""
    return np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)


@pytest.fixture(scope="module", params=["no fronts", pytest.param("two fronts", marks=pytest.mark.slow)])
def expressed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without fronts, and one with two."""
    fronts = ("--fronts", "2") if request.param == "two fronts" else ()
    running = serve(tmp_path_factory.mktemp("express"), *fronts)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()
