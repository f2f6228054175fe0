"""Clients that ask and do not read cost little, and are gone after a stated time."""

import socket
import time
from collections.abc import Callable

import pytest

from served import Served
from vitals import Vitals

pytestmark = pytest.mark.slow


def fill(client: socket.socket, data: bytes, limit_bytes: int) -> int:
    """Send until the other side takes no more for a while; return how much it took."""
    client.settimeout(0.3)
    sent = 0
    try:
        while sent < limit_bytes:
            sent += client.send(data)
    except (TimeoutError, ConnectionError):
        pass
    return sent


def is_gone(client: socket.socket, within_s: float) -> bool:
    """Whether the server closes the connection, read or not, in this time."""
    client.settimeout(within_s)
    until_s = time.monotonic() + within_s
    try:
        while time.monotonic() < until_s:
            client.send(b"\r\n")
            time.sleep(0.05)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("path", ["/", "/metrics", "/v2/models/slimresnet", "/nowhere"])
def test_pipelined_requests_that_are_never_read_are_not_answered_into_memory(
    attacked: Served, connect: Callable[[], socket.socket], path: str
) -> None:
    ask = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * 1000
    with Vitals(attacked):
        clients = [connect() for _ in range(4)]
        for client in clients:
            fill(client, ask, 4 * 2**20)
        assert all(is_gone(client, 60.0) for client in clients), "dropped after the period of grace"


def test_a_stream_that_is_never_read_ends(attacked: Served, connect: Callable[[], socket.socket]) -> None:
    with Vitals(attacked):
        clients = [connect() for _ in range(20)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /dashboard/frames HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(2.0)


def test_a_slow_reader_that_keeps_the_pace_gets_everything(
    attacked: Served, connect: Callable[[], socket.socket]
) -> None:
    """Answers fill the buffers again and again, and nothing is lost while the server waits for the client."""
    client, count, mark = connect(), 400, b"HTTP/1.1 200"
    client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * count)
    answers, rest, received = 0, b"", 0
    while answers < count:
        part = client.recv(40_000)
        assert part, "closed before everything was read"
        rest += part
        answers += rest.count(mark)
        rest = rest[-(len(mark) - 1) :]
        received += len(part)
        if received < 2_000_000:
            time.sleep(0.02)
