"""HTTP as any client may speak it, politely or not."""

import http.client
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from served import Served


def ask(
    address: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(address, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=body or None, headers=named)
    response = connection.getresponse()
    found = response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}
    connection.close()
    return found


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
    found, body, _ = ask(served.http, method, path)
    assert found == status
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


GOOD = {
    "inputs": [{"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "data": [7] * 3072}],
}


def mutated(rng: random.Random) -> bytes:
    """A good body, spoilt: bytes flipped, cut, doubled, or fields of other kinds."""
    spoil = rng.choice(["type", "bytes", "cut", "data", "noise"])
    message = json.loads(json.dumps(GOOD))
    odd = [None, True, -1, 1e308, "x", [], {}, [[]], "💥", 2**70, [None], {"a": 1}]
    if spoil == "type":
        where = rng.choice(["name", "shape", "datatype", "data", "parameters"])
        message["inputs"][0][where] = rng.choice(odd)
    elif spoil == "data":
        message["inputs"][0]["data"] = rng.choice(
            [[300] * 3072, [0.5] * 3072, [1] * 7, [["a"]], [[1, 2], [3]], 5]
        )
    elif spoil == "noise":
        return rng.randbytes(rng.randrange(1, 200))
    body = json.dumps(message).encode()
    if spoil == "bytes":
        spoilt = bytearray(body)
        for _ in range(rng.randrange(1, 6)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        return bytes(spoilt)
    return body[: rng.randrange(len(body))] if spoil == "cut" else body


def test_ten_thousand_malformed_requests_are_refused_without_a_failure(served: Served) -> None:
    rng = random.Random(0)
    connection = http.client.HTTPConnection(served.http, timeout=60)
    seen: dict[int, int] = {}
    for number in range(10_000):
        headers = {}
        if rng.random() < 0.2:
            headers["inference-header-content-length"] = rng.choice(["-1", "x", "0", "10", "999999", ""])
        if rng.random() < 0.1:
            headers["content-encoding"] = "gzip"
        connection.request("POST", "/v2/models/slimresnet/infer", body=mutated(rng), headers=headers)
        response = connection.getresponse()
        body = response.read()
        seen[response.status] = seen.get(response.status, 0) + 1
        assert response.status in (200, 400), (number, response.status, body)
        if response.status != 200:
            assert json.loads(body)["error"]
    assert seen[400] > 8_000
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


def test_lines_that_are_no_http_are_refused(served: Served) -> None:
    rng = random.Random(1)
    host, port = served.http.split(":")
    heads = [
        b"GET",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ]
    for number in range(300):
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(heads[number] if number < len(heads) else rng.randbytes(rng.randrange(1, 400)))
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while part := client.recv(65536):
                answer += part
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert ask(served.http, "GET", "/v2/health/ready")[0] == 200


def test_with_a_token_only_health_is_open(own_server: Callable[..., Served]) -> None:
    address = own_server("--token", "s3cret").http
    assert ask(address, "GET", "/v2/health/ready")[0] == 200
    status, body, headers = ask(address, "GET", "/v2")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in json.loads(body)["error"]
    assert ask(address, "GET", "/v2", authorization="Bearer wrong")[0] == 401
    assert ask(address, "GET", "/v2", authorization="Bearer s3cret")[0] == 200


def test_half_of_a_tls_pair_is_refused(tmp_path: Path) -> None:
    from slimsched.cli.serve import _tls
    from slimsched.errors import ConfigError

    with pytest.raises(ConfigError, match="TLS needs both"):
        _tls(tmp_path / "cert.pem", None)
