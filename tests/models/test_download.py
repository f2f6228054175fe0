import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from command_line import CliRunner
from slimsched.core.config import DataError
from slimsched.models.data import cifar
from slimsched.models.data.cifar import download


def archive() -> bytes:
    """An archive laid out like the official one, its images noise."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in ("train.bin", "test.bin", "fine_label_names.txt"):
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = 500_000
            tar.addfile(member, io.BytesIO(bytes(range(250)) * 2000))
    return raw.getvalue()


CONTENT = archive()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT, with ranges at /file, without at /plain, cut short at /cut."""

    ranges: list[str | None]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)  # type: ignore[attr-defined]
        if self.path == "/missing":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.path == "/file" else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:300_000] if self.path == "/cut" else body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.ranges = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def address(server: ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_a_file_is_fetched_whole_and_checked(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = download(
        address(server, "/file"), tmp_path / "new" / "a.bin", md5=MD5, advance=lambda *done: seen.append(done)
    )
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_cut_download_goes_on_where_it_stopped(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run the command again"):
        download(address(server, "/cut"), tmp_path / "a.bin", md5=MD5)
    have = (tmp_path / "a.bin.partial").stat().st_size
    assert 0 < have < len(CONTENT)
    assert download(address(server, "/file"), tmp_path / "a.bin", md5=MD5).read_bytes() == CONTENT
    assert server.ranges[-1] == f"bytes={have}-"  # type: ignore[attr-defined]


def test_a_server_without_ranges_starts_over(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.partial").write_bytes(CONTENT[:1000])
    assert download(address(server, "/plain"), tmp_path / "a.bin", md5=MD5).read_bytes() == CONTENT


def test_a_file_that_only_needs_checking_is_not_fetched_again(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "a.bin.partial").write_bytes(CONTENT)
    assert download(address(server, "/file"), tmp_path / "a.bin", md5=MD5).read_bytes() == CONTENT
    asked = len(server.ranges)  # type: ignore[attr-defined]
    download(address(server, "/file"), tmp_path / "a.bin", md5=MD5)
    assert len(server.ranges) == asked  # type: ignore[attr-defined]


def test_another_file_than_expected_is_refused_and_removed(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="not the expected file"):
        download(address(server, "/file"), tmp_path / "a.bin", md5="0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_address_says_so(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answered 404"):
        download(address(server, "/missing"), tmp_path / "a.bin", md5=MD5)


def test_the_command_lays_the_data_out_where_it_is_found(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    arguments = ["data", "fetch", "--data", str(tmp_path), "--url", address(server, "/file"), "--md5", MD5]
    result = CliRunner().invoke(arguments)
    assert result.exit_code == 0
    assert (tmp_path / "cifar-100-binary" / "test.bin").stat().st_size == 500_000
    assert cifar.find(tmp_path) == tmp_path / "cifar-100-binary"
