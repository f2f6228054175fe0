"""More than ten thousand malformed requests: bodies, tensors, headers, bytes that are not HTTP, protobufs.

None may fail the server (no 5xx, no INTERNAL), end a process or leave memory behind.
"""

import http.client
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from served import Served
from slimsched.serving.api.proto import inference_pb2

INFER = "/v2/models/slimresnet/infer"
GROWTH_BYTES = 48 * 2**20
"""Allocators keep some memory; a leak of one body per request would be above 100 MB."""
ODD = [None, True, -1, 1e308, "x", [], {}, [[]], "💥", 2**70, [None], {"a": 1}, "\x00", -(2**63), [2**40] * 4]


def message() -> dict[str, object]:
    """Return a valid request."""
    images = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "data": [7] * 3072}
    return {"inputs": [images], "outputs": [{"name": "classes"}], "parameters": {"width": 0.25}}


def spoilt_bytes(rng: random.Random, body: bytes) -> bytes:
    """Return the bytes flipped, cut, doubled or replaced."""
    how = rng.randrange(4)
    if how == 0:
        flipped = bytearray(body)
        for _ in range(rng.randrange(1, 6)):
            flipped[rng.randrange(len(flipped))] = rng.randrange(256)
        return bytes(flipped)
    if how == 1:
        return body[: rng.randrange(len(body))]
    if how == 2:
        at = rng.randrange(len(body))
        return body[:at] + body
    return rng.randbytes(rng.randrange(1, 400))


def spoilt_body(rng: random.Random) -> bytes:
    """Return broken JSON, or valid JSON with parts of the wrong type."""
    spoilt = message()
    images = spoilt["inputs"][0]  # type: ignore[index]
    how = rng.randrange(5)
    if how == 0:
        images[rng.choice(["name", "shape", "datatype", "data", "parameters"])] = rng.choice(ODD)
    elif how == 1:
        images["data"] = rng.choice([[300] * 3072, [0.5] * 3072, [1] * 7, [["a"]], [[1, 2], [3]], 5])
    elif how == 2:
        name = rng.choice(
            ["deadline_ms", "timeout", "priority", "min_accuracy", "max_energy_mj", "width", "plan"]
        )
        spoilt["parameters"] = {name: rng.choice([*ODD, -7.5, float(2**60)])}
    elif how == 3:
        spoilt[rng.choice(["inputs", "outputs", "parameters", "id"])] = rng.choice(ODD)
    body = json.dumps(spoilt).encode()
    return spoilt_bytes(rng, body) if how == 4 else body


def spoilt_tensor(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """Return raw bytes that do not fit the JSON before them, with a header that does not fit either."""
    datatype = rng.choice(["UINT8", "FP32", "BYTES", "INT64"])
    raw = rng.randbytes(rng.choice([0, 1, 3071, 3073, 12288])) if rng.random() < 0.7 else nans(rng)
    images = {
        "name": "images",
        "shape": rng.choice(
            [[1, 3, 32, 32], [2, 3, 32, 32], [0, 3, 32, 32], [-1, 3, 32, 32], [2**33, 3, 32, 32]]
        ),
        "datatype": datatype,
        "parameters": {"binary_data_size": rng.choice([len(raw), 0, -1, 2**40, "x", True])},
    }
    head = json.dumps({"inputs": [images]}).encode()
    length = rng.choice([str(len(head)), "0", "-1", "x", "", str(2**40), "1e3", str(len(head) + 1)])
    return head + raw, {"inference-header-content-length": length}


def nans(rng: random.Random) -> bytes:
    """Return floats outside 0 to 1, or values that are not numbers."""
    return np.full(3072, rng.choice([np.nan, np.inf, -1.0, 1.5]), np.dtype("<f4")).tobytes()


def spoilt_headers(rng: random.Random) -> dict[str, str]:
    """Return headers that are too many, too long, or have the wrong meaning."""
    return rng.choice(
        [
            {"content-encoding": rng.choice(["gzip", "br", "x"])},
            {"authorization": "Bearer \xff" + "a" * rng.randrange(300)},
            {f"x-{n}": "y" * 40 for n in range(rng.randrange(1, 60))},
            {"content-type": "\t\x80;;=", "inference-header-content-length": "\xb2"},
            {"expect": "a miracle", "accept": "*/*;q=x"},
        ]
    )


def spoilt_protobuf(rng: random.Random) -> bytes:
    """Return a message with wrong parts, or bytes that are not a message."""
    request = inference_pb2.ModelInferRequest(model_name=rng.choice(["slimresnet", "", "vgg"]))
    shape = rng.choice([[1, 3, 32, 32], [], [-1, 3, 32, 32], [2**40, 3, 32, 32], [1, 3, 32]])
    request.inputs.add(
        name=rng.choice(["images", "", "x"]), datatype=rng.choice(["UINT8", "FP32", "FP64"]), shape=shape
    )
    for _ in range(rng.randrange(3)):
        request.raw_input_contents.append(rng.randbytes(rng.choice([0, 3071, 3073, 12288])))
    if rng.random() < 0.3:
        request.parameters[rng.choice(["width", "plan", "deadline_ms"])].string_param = rng.choice(
            ["x", "nan", ""]
        )
    whole = request.SerializeToString()
    return whole if rng.random() < 0.5 else spoilt_bytes(rng, whole)


def rss_bytes(served: Served) -> int:
    """Return the memory of the gateway and its servers."""
    pids = [served.process.pid, *served.children()]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return 4096 * sum(pages)


@pytest.fixture
def unharmed(served: Served) -> Iterator[Served]:
    """A server that must still be ready afterwards, with the same processes and about the same memory."""
    send_bodies(served, 300)
    before, children = rss_bytes(served), served.children()
    yield served
    assert served.children() == children
    assert rss_bytes(served) - before < GROWTH_BYTES
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("POST", INFER, body=json.dumps(message()))
    assert connection.getresponse().status == 200


def send(served: Served, requests: Iterator[tuple[bytes, dict[str, str]]]) -> Counter[int]:
    """Send on one kept-alive connection; open a new one when the server closes it."""
    seen: Counter[int] = Counter()
    connection = http.client.HTTPConnection(served.http, timeout=60)
    for body, headers in requests:
        connection.request("POST", INFER, body=body, headers=headers)
        response = connection.getresponse()
        text = response.read()
        seen[response.status] += 1
        assert response.status < 500, (body[:300], headers, text)
        assert response.status == 200 or json.loads(text)["error"]
    return seen


def send_bodies(served: Served, count: int) -> Counter[int]:
    rng = random.Random(0)
    return send(served, ((spoilt_body(rng), {}) for _ in range(count)))


def test_five_thousand_malformed_bodies(unharmed: Served) -> None:
    seen = send_bodies(unharmed, 5_000)
    assert set(seen) <= {200, 400}
    assert seen[400] > 4_000


def test_three_thousand_malformed_tensors(unharmed: Served) -> None:
    rng = random.Random(1)
    seen = send(unharmed, (spoilt_tensor(rng) for _ in range(3_000)))
    assert set(seen) <= {200, 400}
    assert seen[400] > 2_800


def test_a_thousand_malformed_headers(unharmed: Served) -> None:
    rng = random.Random(2)
    body = json.dumps(message() | {"inputs": []}).encode()
    seen = send(unharmed, ((body, spoilt_headers(rng)) for _ in range(1_000)))
    assert set(seen) <= {400, 415, 417, 431}


def test_two_thousand_malformed_protobufs(unharmed: Served) -> None:
    rng = random.Random(3)
    seen: Counter[str] = Counter()
    with grpc.insecure_channel(unharmed.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")  # sends raw bytes
        for _ in range(2_000):
            seen[infer.future(spoilt_protobuf(rng), timeout=60).code().name] += 1
    assert set(seen) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert seen["INVALID_ARGUMENT"] > 500


def test_lines_that_are_not_http_are_refused(unharmed: Served) -> None:
    rng = random.Random(4)
    host, port = unharmed.http.split(":")
    heads = [
        b"GET",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: yyyyyyyy\r\n" * 9000 + b"\r\n",
    ]
    for number in range(400):
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(heads[number] if number < len(heads) else rng.randbytes(rng.randrange(1, 400)))
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while part := client.recv(65536):
                answer += part
            fitting = (b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505")
            assert answer == b"" or answer.startswith(fitting), answer
