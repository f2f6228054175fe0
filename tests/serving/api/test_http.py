"""The HTTP server with well-behaved and badly behaved clients."""

import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from served import Served
from slimsched.serving.api.client.client import Client, UnreachableError
from slimsched.serving.api.proto import inference_pb2


def ask(
    address: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(address, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=body or None, headers=named)
    response = connection.getresponse()
    reply = response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}
    connection.close()
    return reply


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/health/live", 200),
        ("HEAD", "/v2/health/ready", 200),
        ("GET", "/v2", 200),
        ("GET", "/v2/models/slimresnet/versions/1", 200),
        ("GET", "/v2/models/slimresnet/versions/7", 404),
        ("GET", "/v2/models/slimresnet/infer", 405),
        ("POST", "/v2/models/slimresnet", 405),
        ("GET", "/etc/passwd", 404),
        ("GET", "/v2/models/../../etc/passwd", 404),
        ("DELETE", "/v2/health/live", 405),
    ],
)
def test_paths_and_methods(served: Served, method: str, path: str, status: int) -> None:
    answered, body, _ = ask(served.http, method, path)
    assert answered == status
    if status >= 400:
        assert json.loads(body)["error"]


def test_several_requests_on_one_connection_are_answered_in_order(served: Served) -> None:
    host, port = served.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        paths = ["/v2", "/v2/health/live", "/nowhere", "/v2/models/slimresnet"]
        client.sendall(b"".join(f"GET {p} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for p in paths))
        received = b""
        while received.count(b"HTTP/1.1 ") < 4 or not received.endswith(b"}"):
            received += client.recv(65536)
    statuses = [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 404, 200]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Served) -> None:
    host, port = served.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(
            b"POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n"
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
        assert client.recv(65536) == b"", "and the connection is closed"


def test_with_a_token_only_health_is_open(own_server: Callable[..., Served]) -> None:
    address = own_server("--token", "s3cret").http
    assert ask(address, "GET", "/v2/health/ready")[0] == 200
    status, body, headers = ask(address, "GET", "/v2")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in json.loads(body)["error"]
    assert ask(address, "GET", "/v2", authorization="Bearer wrong")[0] == 401
    assert ask(address, "GET", "/v2", authorization="Bearer s3cret")[0] == 200


def test_a_connection_above_the_limit_is_told_to_retry(served: Served) -> None:
    host, port = served.http.split(":")
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(1100)]
        clients[-1].settimeout(30)
        answer = clients[-1].recv(65536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        clients[0].sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert clients[0].recv(65536).startswith(b"HTTP/1.1 200 "), "the first are served"
    while ask(served.http, "GET", "/v2/health/live")[0] != 200:
        time.sleep(0.01)  # until the server has seen that the connections are closed


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_both_protocols_speak_tls(own_server: Callable[..., Served], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    served = own_server("--tls-cert", str(cert), "--tls-key", str(key))
    image = np.zeros((3, 32, 32), np.uint8)
    with Client(f"https://{served.http}", ca_file=str(cert)) as client:
        assert len(client.classify(image).labels) == 1
    with pytest.raises(UnreachableError), Client(f"https://{served.http}") as stranger:
        stranger.classify(image)
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    with grpc.secure_channel(served.grpc, credentials) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert inference_pb2.ServerLiveResponse.FromString(live(b"", timeout=30)).live
    assert served.stop() == 0


def test_half_of_a_tls_pair_is_refused(tmp_path: Path) -> None:
    from slimsched.core.config import ConfigError
    from slimsched.serving.api.grpc_server import read_tls

    with pytest.raises(ConfigError, match="TLS needs both"):
        read_tls(tmp_path / "cert.pem", None)
