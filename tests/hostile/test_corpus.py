"""Inputs that once did harm, or could: each is sent once, and the server stays well.

`corpus/` keeps them as raw bytes, and `fuzz` changes them at random. The end of a name in `corpus/http` is
the status of the last answer; `any` stands for one that may differ, or for none.
"""

import http.client
import re
import socket
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from served import Served
from slimsched.serving.api.proto import inference_pb2
from vitals import health_s

CORPUS = Path(__file__).parent / "corpus"
MORE_S = 0.2
REFUSALS = (*range(400, 500), 501, 505)
INTERNAL = ("500", "INTERNAL", "UNKNOWN", "DATA_LOSS")


def files(kind: str) -> list[Path]:
    return sorted((CORPUS / kind).iterdir())


def send(address: str, data: bytes, within_s: float) -> bytes:
    """Send bytes on a new connection, and return what comes in this time, until nothing more does."""
    host, port = address.split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=30) as client, suppress(OSError):
        client.sendall(data)
        client.settimeout(within_s)
        while part := client.recv(65536):
            received += part
            client.settimeout(MORE_S)
    return received


def unexpected_failures(served: Served) -> float:
    """Return how many answers the server itself counts as its own failures."""
    connection = http.client.HTTPConnection(served.http, timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    counts = re.findall(r'^slim_responses_total\{[^}]*code="(\w+)"[^}]*\} (\S+)', page, re.M)
    return sum(float(count) for code, count in counts if code in INTERNAL)


@pytest.mark.parametrize("file", files("http"), ids=lambda file: file.name)
def test_http_inputs_get_the_answer_that_they_should(attacked: Served, file: Path) -> None:
    before, expected = unexpected_failures(attacked), file.suffix.removeprefix(".")
    received = send(attacked.http, file.read_bytes(), 0.5 if expected == "any" else 5.0)
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
    assert all(status == 200 or status in REFUSALS for status in statuses), statuses
    if expected != "any":
        assert statuses, "it was not answered"
        assert str(statuses[-1]) == expected
    assert unexpected_failures(attacked) == before
    assert health_s(attacked.http) < 5.0


@pytest.mark.parametrize("file", files("h2"), ids=lambda file: file.name)
def test_http2_inputs_leave_the_server_well(attacked: Served, file: Path) -> None:
    before = unexpected_failures(attacked)
    send(attacked.grpc, file.read_bytes(), 0.3)
    with grpc.insecure_channel(attacked.grpc) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        answer = inference_pb2.ServerLiveResponse.FromString(live(b"", timeout=20))  # type: ignore[attr-defined]
        assert answer.live
    assert unexpected_failures(attacked) == before


def test_what_is_known_to_be_right_is_answered(attacked: Served) -> None:
    received = send(attacked.grpc, (CORPUS / "h2" / "good").read_bytes(), 2.0)
    assert received.count(b"classes") == 3, "it has three calls"


def test_the_corpus_stays_small() -> None:
    assert sum(file.stat().st_size for kind in ("http", "h2") for file in files(kind)) < 200 * 2**10
