"""A real server with short deadlines, and raw connections to it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from served import Served, serve

SHORT = {"head_s": 1, "grace_s": 1, "idle_s": 2, "drain_s": 3}
"""The limits in time, shortened so that the tests need not wait."""


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all attacks; it must survive them all without an unexpected failure."""
    options = [word for name, value in SHORT.items() for word in ("--limit", f"{name}={value}")]
    running = serve(tmp_path_factory.mktemp("attacked"), *options)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def connect(attacked: Served) -> Iterator[Callable[[], socket.socket]]:
    """Open raw connections; all are closed at the end."""
    host, port = attacked.http.split(":")
    with ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
