"""The express line: requests with known heads are read without Python, and nobody can tell."""

import http.client
import json
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from served import Served, serve
from slimsched.serving.api.http import is_available

pytestmark = pytest.mark.skipif(
    not is_available and not os.environ.get("SLIM_REQUIRE_EXPRESS"),
    reason="the express line was not compiled",
)

PATH = "/v2/models/slimresnet/infer"


def body_of(images: NDArray[np.uint8], **parameters: object) -> tuple[bytes, dict[str, str]]:
    """Write a request that asks for the classes as raw bytes."""
    tensor = {"name": "images", "shape": images.shape, "datatype": "UINT8"}
    tensor["parameters"] = {"binary_data_size": images.nbytes}
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("classes", "logits")]
    head = json.dumps({"inputs": [tensor], "outputs": outputs, "parameters": parameters}).encode()
    return head + images.tobytes(), {"inference-header-content-length": str(len(head))}


Answer = tuple[int, dict[str, object], list[int], NDArray[np.float32]]


def ask(connection: http.client.HTTPConnection, images: NDArray[np.uint8], **parameters: object) -> Answer:
    """Ask for an answer; return status, parameters, classes and logits."""
    body, headers = body_of(images, **parameters)
    connection.request("POST", PATH, body, headers)
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        return response.status, json.loads(data), [], np.zeros(0, np.float32)
    length = int(response.headers["inference-header-content-length"])
    message, raw = json.loads(data[:length]), data[length:]
    sizes = [one["parameters"]["binary_data_size"] for one in message["outputs"]]
    assert [one["shape"] for one in message["outputs"]] == [[len(images)], [len(images), 100]]
    classes = np.frombuffer(raw[: sizes[0]], np.int64).tolist()
    return 200, message["parameters"], classes, np.frombuffer(raw[sizes[0] :], np.float32).reshape(-1, 100)


def connect(served: Served) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(served.http, timeout=30)


def counted(served: Served, more: float, than: float) -> None:
    """Wait until the express line has counted so many more responses: fronts report ten times per second."""
    until_s = time.monotonic() + 5.0
    while served.metric("slim_express_responses_total") < than + more and time.monotonic() < until_s:
        time.sleep(0.05)
    assert served.metric("slim_express_responses_total") >= than + more


def test_the_same_head_is_read_by_the_express_line_and_answered_alike(
    expressed: Served, images: NDArray[np.uint8]
) -> None:
    before = expressed.metric("slim_express_responses_total")
    connection = connect(expressed)
    first = ask(connection, images, plan="0.5")
    others = [ask(connection, images[::-1].copy(), plan="0.5") for _ in range(3)]
    assert {status for status, *_ in others} == {200}
    for _, parameters, classes, logits in others:
        assert parameters.keys() == first[1].keys()
        assert parameters["choices"] == first[1]["choices"]
        assert parameters["network_ms"] >= 0.0
        assert classes == first[2][::-1], "each image has its own answer"
        np.testing.assert_allclose(logits, first[3][::-1], atol=0.3)
    assert len({parameters["request"] for _, parameters, *_ in [first, *others]}) == 4
    counted(expressed, 2.0, before)


def test_another_json_behind_the_same_head_is_understood(
    expressed: Served, images: NDArray[np.uint8]
) -> None:
    connection = connect(expressed)
    for plan in ("0.5", "1.0", "0.5", "9.9", "0.5"):  # all as long as one another
        status, parameters, *_ = ask(connection, images[:1], plan=plan)
        assert status == (400 if plan == "9.9" else 200)
        if status == 200:
            assert parameters["choices"] == ",".join([plan] * 4)


def test_requests_that_come_together_are_answered_in_order(
    expressed: Served, images: NDArray[np.uint8]
) -> None:
    connection = connect(expressed)
    alone = [ask(connection, image[None], plan="0.5")[2][0] for image in images]
    body, headers = body_of(images[:1], plan="0.5")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode()
    json_bytes = len(body) - images[0].nbytes
    requests = [head + body[:json_bytes] + image.tobytes() for image in images]
    host, port = expressed.http.split(":")
    for _ in range(2):  # the second time, the head is known
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"".join(requests))
            stream, classes = client.makefile("rb"), []
            for _ in requests:
                assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
                headers = dict(line.split(b": ") for line in iter(stream.readline, b"\r\n"))
                data, at = stream.read(int(headers[b"content-length"])), b"inference-header-content-length"
                classes.append(int(np.frombuffer(data[int(headers[at]) :][:8], np.int64)[0]))
            assert classes == alone


def test_many_clients_get_their_own_answers(expressed: Served, images: NDArray[np.uint8]) -> None:
    """Requests of several clients travel in one bundle, and batches may cut it anywhere."""
    connection = connect(expressed)
    shuffles = [np.random.default_rng(number).permutation(8)[:3] for number in range(12)]
    expected = ask(connection, images, plan="0.5")[2]
    wrong: list[object] = []

    def client(order: NDArray[np.int64]) -> None:
        own = connect(expressed)
        for _ in range(12):
            status, _, classes, _ = ask(own, images[order], plan="0.5")
            if (status, classes) != (200, [expected[place] for place in order]):
                wrong.append((status, classes))

    threads = [threading.Thread(target=client, args=(order,)) for order in shuffles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_client_that_leaves_is_let_go(expressed: Served, images: NDArray[np.uint8]) -> None:
    connection = connect(expressed)
    ask(connection, images)
    ask(connection, images)
    body, headers = body_of(images)
    for _ in range(3):
        leaving = connect(expressed)
        leaving.request("POST", PATH, body, headers)
        leaving.close()
    assert ask(connection, images)[0] == 200
    until_s = time.monotonic() + 10.0
    while expressed.metric("slim_images_in_system") and time.monotonic() < until_s:
        time.sleep(0.05)
    assert expressed.metric("slim_images_in_system") == 0.0


def test_a_client_that_is_slow_in_the_middle_of_a_known_request_is_answered(
    expressed: Served, images: NDArray[np.uint8]
) -> None:
    connection = connect(expressed)
    expected = ask(connection, images[:2], plan="0.5")[2]
    body, headers = body_of(images[:2], plan="0.5")
    connection.putrequest("POST", PATH)
    for name, value in {**headers, "content-length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders()
    for start in range(0, len(body), 2500):
        connection.send(body[start : start + 2500])
        time.sleep(0.6)
    response = connection.getresponse()
    data = response.read()
    at = int(response.headers["inference-header-content-length"])
    assert response.status == 200
    assert np.frombuffer(data[at : at + 16], np.int64).tolist() == expected


def test_what_cannot_be_answered_in_time_is_refused_and_counted(
    expressed: Served, images: NDArray[np.uint8]
) -> None:
    """More than the servers can do: each request is answered or refused, and the counts agree."""
    outcomes: list[int] = []
    before = expressed.metric('slim_responses_total{protocol="http",kind="infer"')

    def client() -> None:
        own = connect(expressed)
        outcomes.extend(ask(own, images, deadline_ms=120)[0] for _ in range(30))

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 480
    assert set(outcomes) <= {200, 429, 504}
    until_s, name = time.monotonic() + 5.0, 'slim_responses_total{protocol="http",kind="infer"'
    while expressed.metric(name) < before + 480 and time.monotonic() < until_s:
        ask(connect(expressed), images[:1])  # what was refused is told with the next request
        before += 1
    assert expressed.metric(name) >= before + 480


def test_without_the_compiled_part_everything_is_read_in_python(
    tmp_path: Path, images: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIM_PURE", "1")
    running = serve(tmp_path)
    connection = connect(running)
    assert {ask(connection, images, plan="0.5")[0] for _ in range(3)} == {200}
    assert running.metric("slim_express_responses_total") == 0.0
    assert running.stop() == 0
