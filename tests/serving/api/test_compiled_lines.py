"""Who serves without a compiled line is told so at the start, and what to do about it."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from served import Served, serve
from slimsched.serving.api.express.line import unused_lines


def without(*missing: str, error: type[ImportError] = ModuleNotFoundError) -> list[str]:
    """Return what is said where these modules cannot be loaded."""

    def load(name: str) -> object:
        module = name.rpartition(".")[2]
        if module in missing:
            raise error(f"{module} cannot be loaded")
        return object()

    return unused_lines(has_tls=False, load=load)


@pytest.fixture(autouse=True)
def _compiled_lines_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIM_PURE", raising=False)


def test_nothing_is_said_where_both_lines_are_there() -> None:
    assert without() == []


@pytest.mark.parametrize(
    ("protocol", "setting"), [("HTTP", "SLIM_REQUIRE_EXPRESS"), ("gRPC", "SLIM_REQUIRE_EXPRESS_GRPC")]
)
def test_a_line_that_must_be_there_is_there(protocol: str, setting: str) -> None:
    if not os.environ.get(setting):
        pytest.skip(f"{setting} is not set")
    missing = [one for one in unused_lines(has_tls=False) if f"line of {protocol} " in one]
    assert not missing, (
        "make setup compiles it; if its .venv is older than nghttp2, remove .venv/.ready first"
    )


def test_each_missing_line_says_what_to_install() -> None:
    http, grpc = without("_express", "_express_grpc")
    assert "line of HTTP is missing" in http
    assert "a C++ compiler, then reinstall" in http
    assert "line of gRPC is missing" in grpc
    assert "libnghttp2-dev), then reinstall" in grpc


def test_without_nghttp2_only_grpc_is_named() -> None:
    assert len(without("_express_grpc")) == 1


def test_a_library_that_is_not_there_is_named() -> None:
    (said,) = without("_express_grpc", error=ImportError)
    assert "_express_grpc cannot be loaded; install" in said


def test_what_was_switched_off_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = unused_lines(has_tls=True, load=import_module)
    assert said.startswith("with TLS")
    monkeypatch.setenv("SLIM_PURE", "1")
    (said,) = unused_lines(has_tls=False, load=import_module)
    assert said.startswith("SLIM_PURE is set")


def test_a_server_says_at_its_start_that_it_reads_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIM_PURE", "1")
    running = serve(tmp_path)
    assert running.stop() == 0
    assert running.log.read_text().count("SLIM_PURE is set: HTTP and gRPC are read without") == 1


def test_a_server_says_what_is_missing_and_nothing_else(served: Served) -> None:
    said = [one for one in served.log.read_text().splitlines() if "compiled line" in one]
    assert said == unused_lines(has_tls=False), "nothing where both are compiled"
