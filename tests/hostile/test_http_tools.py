"""Tools that everybody has: ab, HAProxy, curl and nc, against servers with and without the compiled line."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raw_http import infer
from served import Served, serve

LIVE = "/v2/health/live"


def need(tool: str) -> str:
    """Return where a tool is; without it the test is skipped, or fails where it must be."""
    found = shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin")
    if found is None and os.environ.get("SLIM_REQUIRE_HTTP_TOOLS"):
        pytest.fail(f"{tool} is not installed, and SLIM_REQUIRE_HTTP_TOOLS is set")
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found


@pytest.fixture(scope="module", params=["compiled", "pure"])
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for the tools."""
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "pure":
            environment.setenv("SLIM_PURE", "1")
        running = serve(tmp_path_factory.mktemp("tools"))
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def output(*command: str, given: bytes = b"") -> str:
    done = subprocess.run(command, input=given, capture_output=True, timeout=60)
    return done.stdout.decode("latin-1")


def test_ab_keeps_its_connections(spoken: Served, tmp_path: Path) -> None:
    ab = need("ab")
    said = output(ab, "-q", "-k", "-n", "40", "-c", "4", f"http://{spoken.http}{LIVE}")
    assert re.search(r"Complete requests:\s+40\b", said), said
    assert re.search(r"Keep-Alive requests:\s+40\b", said), said
    assert re.search(r"Failed requests:\s+0\b", said), said
    head, _, body = infer().partition(b"\r\n\r\n")
    length = next(line for line in head.decode().split("\r\n") if line.startswith("inference-header"))
    (tmp_path / "body").write_bytes(body)
    path = head.split()[1].decode()
    post = ["-p", str(tmp_path / "body"), "-T", "application/octet-stream", "-H", length]
    said = output(ab, "-q", "-k", "-l", "-n", "40", "-c", "4", *post, f"http://{spoken.http}{path}")
    assert re.search(r"Complete requests:\s+40\b", said), said
    assert re.search(r"Keep-Alive requests:\s+40\b", said), said
    assert "Non-2xx" not in said, said


def test_haproxys_own_check_says_up(spoken: Served, tmp_path: Path) -> None:
    haproxy = need("haproxy")
    socket, config = tmp_path / "stats", tmp_path / "haproxy.cfg"
    config.write_text(
        f"global\n  stats socket {socket}\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n"
        f"backend slim\n  option httpchk\n  server one {spoken.http} check inter 100\n"
    )
    said = ""
    with subprocess.Popen([haproxy, "-db", "-f", str(config)], stderr=subprocess.DEVNULL) as running:
        try:
            give_up_s = time.monotonic() + 30
            while ",L7OK," not in said and ",L7STS," not in said and time.monotonic() < give_up_s:
                time.sleep(0.1)
                said = _stats(str(socket)) if socket.exists() else ""
        finally:
            running.terminate()
    [row] = [line for line in said.splitlines() if line.startswith("slim,one,")]
    assert ",UP," in row, row
    assert ",L7OK,204," in row, row


def _stats(path: str) -> str:
    """Ask HAProxy for its view of the server."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"show stat\n")
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


@pytest.mark.parametrize(
    ("method", "status"),
    [
        ("GET", 200),
        ("OPTIONS", 204),
        ("POST", 405),
        ("PUT", 405),
        ("DELETE", 405),
        ("PATCH", 405),
        ("TRACE", 405),
        ("CONNECT", 501),
        ("FROBNICATE", 501),
    ],
)
def test_curl_is_answered_whatever_the_method(spoken: Served, method: str, status: int) -> None:
    curl = need("curl")
    command = [curl, "-s", "-i", "-m", "10", "-X", method, f"http://{spoken.http}/v2/health/ready"]
    said = output(*command)
    assert said.startswith(f"HTTP/1.1 {status} "), said
    assert ("allow: GET, HEAD, OPTIONS" in said) == (status in (204, 405)), said
    assert "date: " in said


def test_curl_asks_for_the_head_alone(spoken: Served) -> None:
    said = output(need("curl"), "-s", "-I", "-m", "10", f"http://{spoken.http}{LIVE}")
    assert said.startswith("HTTP/1.1 200 "), said
    assert "content-length: 13\r\n" in said


def test_curl_upgrades_to_nothing(spoken: Served) -> None:
    """It asks for HTTP/2 in passing, and then uses the same connection again."""
    url = f"http://{spoken.http}{LIVE}"
    said = output(need("curl"), "-sv", "--stderr", "-", "--http2", "-m", "10", url, url)
    assert said.count("HTTP/1.1 200 OK") == 2, said
    assert "Re-using existing connection" in said, said


def test_curl_sends_a_large_body_after_it_was_told_to(spoken: Served, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"{" + b" " * 2**20 + b"}")
    url, body = f"http://{spoken.http}/v2/models/slimresnet/infer", f"@{tmp_path / 'body'}"
    said = output(
        need("curl"), "-s", "-i", "-m", "10", "-H", "Expect: 100-continue", "--data-binary", body, url
    )
    assert said.startswith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 "), said


@pytest.mark.parametrize("what", ["a page", "a call"])
def test_nc_ends_its_side_and_reads_the_answer(spoken: Served, what: str) -> None:
    nc, (host, port) = need("nc"), spoken.http.split(":")
    sent = f"GET {LIVE} HTTP/1.1\r\nhost: x\r\n\r\n".encode() if what == "a page" else infer()
    for _ in range(3):
        assert output(nc, "-N", "-w", "20", host, port, given=sent).startswith("HTTP/1.1 200 OK\r\n")


def test_a_wrong_request_is_answered_with_a_command_that_works(spoken: Served) -> None:
    curl = need("curl")
    wrong = f"http://{spoken.http}/v2/models/slimresnet/infer"
    said = json.loads(output(curl, "-s", wrong, "-d", "{}"))
    assert said["error"]
    answer = json.loads(output("sh", "-c", said["curl"]))
    assert [one["name"] for one in answer["outputs"]] == ["classes", "logits"]
    evil = "x;$(id)"  # a Host may have such characters
    assert evil not in json.loads(output(curl, "-s", wrong, "-d", "{}", "-H", f"host: {evil}"))["curl"]
