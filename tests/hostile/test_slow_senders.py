"""Clients that send slowly, without end, or more than they may."""

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from served import Served
from vitals import Vitals

POST = b"POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"

pytestmark = pytest.mark.slow


def send_all(client: socket.socket, parts: Iterator[bytes]) -> bytes:
    """Send until the server closes the connection or all is sent; return what it answers."""
    try:
        for part in parts:
            client.sendall(part)
    except ConnectionError:
        pass
    return read_answer(client)


def read_answer(client: socket.socket) -> bytes:
    answer = b""
    try:
        while part := client.recv(65536):
            answer += part
    except ConnectionError:
        pass
    return answer


def endless(first: bytes, part: bytes, count: int) -> Iterator[bytes]:
    yield first
    for _ in range(count):
        yield part


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (POST + b"x-long: ", b"y" * 2**20),
        (POST + b"x-long", b"y" * 2**20),
        (b"GET /" + b"a" * 100, b"a" * 2**20),
        (CHUNKED + b"1;", b"e" * 2**20),
        (CHUNKED + b"0\r\nx-trailer: ", b"y" * 2**20),
        (POST, b"".join(b"x-%06d: 1\r\n" % number for number in range(50_000))),
    ],
    ids=["header value", "header name", "target", "chunk extension", "trailer", "many headers"],
)
def test_what_has_no_end_is_refused_as_it_arrives(
    attacked: Served, connect: Callable[[], socket.socket], first: bytes, part: bytes
) -> None:
    with Vitals(attacked):
        for _ in range(5):
            answer = send_all(connect(), endless(first, part, 100))
            assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400", b"HTTP/1.1 413"))


@pytest.mark.parametrize("first", [POST + b"x: ", POST + b"content-length: 4000000\r\n\r\n", CHUNKED])
def test_single_bytes_do_not_restart_the_clock(
    attacked: Served, connect: Callable[[], socket.socket], first: bytes
) -> None:
    clients = [connect() for _ in range(20)]
    drip = b"1\r\n1\r\n" if first == CHUNKED else b"1"
    began_s = time.monotonic()
    alive = list(clients)
    for client in clients:
        client.sendall(first)
        client.settimeout(0.001)
    while alive and time.monotonic() < began_s + 20.0:
        for client in list(alive):
            try:
                client.send(drip)
                if client.recv(65536).startswith(b"HTTP/1.1 408"):
                    alive.remove(client)
            except TimeoutError:
                pass
            except ConnectionError:
                alive.remove(client)
        time.sleep(0.1)
    assert not alive, f"{len(alive)} of 20 were still connected after 20 s; the limit is 1 s"


def test_a_body_in_single_bytes_takes_no_more_than_its_size(
    attacked: Served, connect: Callable[[], socket.socket]
) -> None:
    with Vitals(attacked) as vitals:
        client = connect()
        chunk = b"1\r\n \r\n" * 10_000
        answer = send_all(client, endless(CHUNKED, chunk, 500))
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert vitals.peak_bytes - vitals.idle_bytes < 64 * 2**20


def test_bodies_of_many_connections_are_limited_together(
    attacked: Served, connect: Callable[[], socket.socket]
) -> None:
    body = b"x" * (4 * 2**20 - 2**10)
    with Vitals(attacked):
        clients = []
        for _ in range(120):  # 480 MB, each body short of its last bytes
            client = connect()
            clients.append(client)
            try:
                client.sendall(POST + b"content-length: 4194304\r\n\r\n" + body)
            except ConnectionError:
                continue
        answers = [client.recv(65536) for client in clients[-1:]]
        assert answers[0].startswith((b"HTTP/1.1 503", b"HTTP/1.1 408", b""))


def test_requests_under_way_are_limited_together(
    attacked: Served, connect: Callable[[], socket.socket]
) -> None:
    """Bodies count until they are answered: blanks around a small request are as heavy as a large one."""
    data = ",".join(["7"] * 3072)
    images = f'"name":"images","shape":[1,3,32,32],"datatype":"UINT8","data":[{data}]'
    head = f'{{"inputs":[{{{images}}}]'.encode()
    body = head + b" " * (4 * 2**20 - len(head) - 1) + b"}"
    with Vitals(attacked):
        clients = []
        for _ in range(60):
            client = connect()
            client.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
            clients.append(client)
        for client in clients:
            assert client.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 503"), "refused clients can read why"


def test_an_idle_connection_is_closed_without_a_word(
    attacked: Served, connect: Callable[[], socket.socket]
) -> None:
    fresh, used = connect(), connect()
    used.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
    assert used.recv(65536).endswith(b"}")
    assert used.recv(65536) == b"", "a 408 would be taken for the answer to the next request"
    assert fresh.recv(65536) == b""


def test_many_connections_from_one_address_leave_room_for_health(
    attacked: Served, connect: Callable[[], socket.socket]
) -> None:
    with Vitals(attacked):
        for _ in range(900):
            connect().sendall(POST + b"x: ")
        time.sleep(1.0)
