"""Front processes: they share a port, keep nothing from the gateway, and cost only their own clients."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from numpy.typing import NDArray

from served import Served, serve, settled
from slimsched.serving.api.client.client import write_request

Images = NDArray[np.uint8]
PATH = "/v2/models/slimresnet/infer"


@pytest.fixture(scope="module")
def fronted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with two front processes."""
    running = serve(tmp_path_factory.mktemp("fronts"), "--fronts", "2")
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def ask(
    connection: http.client.HTTPConnection, images: Images, **terms: float | str
) -> tuple[int, list[int]]:
    """Ask for the classes; return the status and the classes."""
    body, json_bytes = write_request({"images": images}, ("classes",), terms)
    connection.request("POST", PATH, body=body, headers={"inference-header-content-length": str(json_bytes)})
    response = connection.getresponse()
    length, answer = response.getheader("inference-header-content-length"), response.read()
    if length is None:
        return response.status, []
    return response.status, np.frombuffer(answer[int(length) :], np.int64).tolist()


def until(found: Callable[[], bool], within_s: float = 30.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < give_up_s, "it did not happen"
        time.sleep(0.05)


def responses(served: Served) -> float:
    lines = urlopen(f"http://{served.http}/metrics").read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if 'kind="infer",code="200"' in line)


def test_inputs_small_and_large_get_the_answers_of_their_own_images(fronted: Served) -> None:
    images = np.random.default_rng(3).integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)
    one = http.client.HTTPConnection(fronted.http, timeout=60)
    status, classes = ask(one, images, plan="0.25")  # 72 kB: they go through shared memory
    assert status == 200
    assert len(classes) == 24
    for number in (0, 7, 23):
        assert ask(one, images[number : number + 1], plan="0.25") == (200, [classes[number]])


def test_many_clients_at_once_get_the_answers_of_their_own_images(fronted: Served) -> None:
    images = np.random.default_rng(4).integers(0, 256, (48, 3, 32, 32), dtype=np.uint8)
    status, classes = ask(http.client.HTTPConnection(fronted.http, timeout=60), images, plan="0.25")
    assert status == 200
    sizes = [1, 1, 2, 9]

    def client(number: int) -> bool:
        connection = http.client.HTTPConnection(fronted.http, timeout=60)
        found = []
        for turn in range(6):
            start, size = (5 * number + 7 * turn) % 39, sizes[(number + turn) % 4]
            terms = {"plan": "0.25", **({"deadline_ms": 60_000} if number % 3 else {})}
            answer = ask(connection, images[start : start + size], **terms)
            found.append(answer == (200, classes[start : start + size]))
        return all(found)

    with ThreadPoolExecutor(16) as clients:
        assert all(clients.map(client, range(16)))


def test_clients_that_leave_take_nothing_from_those_that_stay(fronted: Served, images: Images) -> None:
    def client(number: int) -> int:
        connection = http.client.HTTPConnection(fronted.http, timeout=60)
        if number % 2:
            return ask(connection, images[:4])[0]
        body, json_bytes = write_request({"images": images[:4]}, ("classes",), {})
        headers = {"inference-header-content-length": str(json_bytes)}
        connection.request("POST", PATH, body=body, headers=headers)
        time.sleep(0.002 * number)
        connection.close()
        return 0

    with ThreadPoolExecutor(16) as clients:
        assert list(clients.map(client, range(32))) == [0, 200] * 16


def test_of_calls_that_come_together_as_many_are_taken_as_fit(
    own_server: Callable[..., Served], images: Images
) -> None:
    served = own_server("--fronts", "2", "--limit", "examples_in_system=6")

    def client(number: int) -> int:
        connection = http.client.HTTPConnection(served.http, timeout=60)
        return ask(connection, images[:3])[0]

    with ThreadPoolExecutor(16) as clients:
        statuses = list(clients.map(client, range(64)))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 2
    assert served.stop() == 0


def test_pages_of_the_gateway_come_through_any_front(fronted: Served) -> None:
    for _ in range(8):  # new connections: the system spreads them over the fronts
        assert json.loads(urlopen(f"http://{fronted.http}/v2/health/ready").read())["ready"] is True
        assert b"<html" in urlopen(f"http://{fronted.http}/").read()
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://{fronted.http}/nothing")
    assert refused.value.code == 404
    with urlopen(f"http://{fronted.http}/dashboard/frames") as stream:
        assert stream.readline().startswith(b"event: history")
    goal = Request(f"http://{fronted.http}/v2/goal", data=b"nonsense", method="PUT")
    with pytest.raises(HTTPError) as refused:
        urlopen(goal)
    assert refused.value.code == 400


def test_responses_of_all_fronts_are_counted(fronted: Served, images: Images) -> None:
    before = settled(lambda: responses(fronted))
    for _ in range(6):
        assert ask(http.client.HTTPConnection(fronted.http, timeout=60), images[:1])[0] == 200
    until(lambda: responses(fronted) == before + 6)


def test_a_front_that_dies_costs_its_own_connections_and_comes_back(fronted: Served, images: Images) -> None:
    kept = [http.client.HTTPConnection(fronted.http, timeout=60) for _ in range(12)]
    for connection in kept:
        assert ask(connection, images[:1])[0] == 200
    victim = fronted.fronts()[0]
    os.kill(victim, signal.SIGKILL)
    time.sleep(0.3)
    alive = 0
    for connection in kept:
        connection.auto_open = 0
        try:
            alive += ask(connection, images[:1])[0] == 200
        except (OSError, http.client.HTTPException):
            continue
    assert 0 < alive < 12, "the other front's connections go on"
    until(lambda: len(fronted.fronts()) == 2 and victim not in fronted.fronts())
    for _ in range(8):
        until(lambda: _answers(fronted, images))


def _answers(served: Served, images: Images) -> bool:
    try:
        return ask(http.client.HTTPConnection(served.http, timeout=60), images[:1])[0] == 200
    except OSError:
        return False


def test_a_front_that_hangs_is_replaced(fronted: Served) -> None:
    victim = fronted.fronts()[0]
    os.kill(victim, signal.SIGSTOP)
    # one that another test has ended may still be starting: it has a minute for that
    until(lambda: len(fronted.fronts()) == 2 and victim not in fronted.fronts(), within_s=90.0)


def test_a_deadline_holds_through_a_front(fronted: Served, images: Images) -> None:
    connection = http.client.HTTPConnection(fronted.http, timeout=60)
    assert ask(connection, images[:1], deadline_ms=0.01)[0] == 504
    assert ask(connection, images[:1], deadline_ms=60_000)[0] == 200


def test_a_token_is_asked_for_by_every_front(own_server: Callable[..., Served], images: Images) -> None:
    served = own_server("--fronts", "2", "--token", "secret")
    for _ in range(4):
        assert ask(http.client.HTTPConnection(served.http, timeout=60), images[:1])[0] == 401
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://{served.http}/metrics")
        assert refused.value.code == 401
    allowed = Request(f"http://{served.http}/metrics", headers={"authorization": "Bearer secret"})
    assert urlopen(allowed).status == 200
    assert served.stop() == 0


def test_a_port_that_is_taken_is_refused_though_fronts_share_theirs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(AssertionError, match="cannot listen at"):
            serve(tmp_path_factory.mktemp("taken"), "--fronts", "2", "--http-port", port)
