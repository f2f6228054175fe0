"""Clients that misuse HTTP/2 at the port of gRPC: what they cost is bounded, and others are served."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc
import pytest

import raw_http2 as h2
from good_client import request
from served import Served
from slimsched.serving.api.grpc_server import is_available
from vitals import Vitals

pytestmark = pytest.mark.skipif(
    not is_available and not os.environ.get("SLIM_REQUIRE_EXPRESS_GRPC"),
    reason="the express line of gRPC was not compiled",
)


def is_served(served: Served) -> bool:
    """Whether a client that behaves has its answer."""
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.unary_unary(h2.INFER)
        return bool(call(request(), timeout=20))


@pytest.fixture
def connect(attacked: Served) -> Iterator[Callable[..., socket.socket]]:
    with ExitStack() as stack:
        yield lambda settings=b"": stack.enter_context(h2.connect(attacked.grpc, settings))


def flood(client: socket.socket, data: bytes, times: int) -> None:
    """Send again and again, until all is sent, the server takes no more, or it closes the connection."""
    client.settimeout(1.0)
    try:
        for _ in range(times):
            client.sendall(data)
    except (TimeoutError, ConnectionError):
        pass


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", os.urandom(4096), h2.PREFACE + b"\xff" * 99]
)
def test_what_is_not_http2_is_hung_up_on(attacked: Served, garbage: bytes) -> None:
    host, port = attacked.grpc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(garbage)
        assert h2.is_closed(client, 10.0)
    assert is_served(attacked)


@pytest.mark.parametrize("sent", [b"", h2.PREFACE[:10], h2.PREFACE], ids=["nothing", "half", "no settings"])
def test_a_client_that_does_not_say_hello_is_not_waited_for(attacked: Served, sent: bytes) -> None:
    host, port = attacked.grpc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(sent)
        assert h2.is_closed(client, 10.0)


@pytest.mark.parametrize(
    "odd",
    [
        h2.frame(h2.PING, 0, 0, b"12345678"),
        h2.frame(h2.SETTINGS, 0, 0, b"\0\4\0\0\xff\xff"),
        h2.frame(h2.PRIORITY, 0, 1, b"\0\0\0\0\1"),
        h2.frame(99, 0, 0, b"unknown"),
    ],
    ids=["ping", "settings", "priority", "unknown"],
)
def test_floods_of_frames_that_mean_nothing_end_the_connection(
    attacked: Served, connect: Callable[..., socket.socket], odd: bytes
) -> None:
    with Vitals(attacked):
        clients = [connect() for _ in range(4)]
        for client in clients:
            flood(client, odd * 1000, 200)
        assert all(h2.is_closed(client, 10.0) for client in clients)
    assert is_served(attacked)


def test_calls_that_are_reset_at_once_end_the_connection(
    attacked: Served, connect: Callable[..., socket.socket]
) -> None:
    body = h2.message(request())
    with Vitals(attacked):
        for with_message in (False, True):
            client, at = connect(), 1
            parts = []
            for at in range(1, 20_001, 2):
                parts.append(h2.frame(h2.HEADERS, h2.END_HEADERS, at, h2.head()))
                if with_message:
                    parts.append(h2.frame(h2.DATA, 0, at, body))
                parts.append(h2.frame(h2.RST_STREAM, 0, at, b"\0\0\0\x08"))
            for start in range(0, len(parts), 300):
                flood(client, b"".join(parts[start : start + 300]), 1)
            assert h2.is_closed(client, 10.0)
    assert is_served(attacked)


def test_headers_without_end_end_the_connection(
    attacked: Served, connect: Callable[..., socket.socket]
) -> None:
    with Vitals(attacked):
        endless = connect()
        endless.sendall(h2.frame(h2.HEADERS, 0, 1, h2.head()))
        flood(endless, h2.frame(h2.CONTINUATION, 0, 1, h2.field("x-long", "y" * 4000)) * 10, 500)
        assert h2.is_closed(endless, 10.0)
        slow = connect()
        slow.sendall(h2.frame(h2.HEADERS, 0, 1, h2.head()))
        assert h2.is_closed(slow, 10.0), "one second is allowed"
        for names in ([f"x-{number}" for number in range(200)], ["x-same"] * 200):
            long = connect()
            many = h2.head() + b"".join(h2.field(name, "y") for name in names)
            long.sendall(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, many))
            assert h2.frame(h2.RST_STREAM, 0, 1)[3:9] in long.recv(65536) + long.recv(65536)
    assert is_served(attacked)


@pytest.mark.slow
def test_slow_messages_are_ended_and_do_not_hold_up_others(
    attacked: Served, connect: Callable[..., socket.socket]
) -> None:
    with Vitals(attacked):
        client = connect()
        for at in range(1, 201, 2):
            start = h2.frame(h2.HEADERS, h2.END_HEADERS, at, h2.head())
            client.sendall(start + h2.frame(h2.DATA, 0, at, b"\0\0\0\x10\0" + b"x" * 50))
        began_s = time.monotonic()
        assert is_served(attacked)
        assert time.monotonic() - began_s < 5.0


def test_messages_of_many_calls_are_limited_together(
    attacked: Served, connect: Callable[..., socket.socket]
) -> None:
    with Vitals(attacked):
        for _ in range(8):
            client = connect()
            for at in range(1, 101, 2):  # 100 MB in all that are announced, and none complete
                part = h2.frame(h2.HEADERS, h2.END_HEADERS, at, h2.head())
                part += h2.frame(h2.DATA, 0, at, b"\0\0\x3f\0\0" + b"x" * 60_000)
                flood(client, part + h2.frame(h2.DATA, 0, at, b"x" * 100_000) * 2, 1)
    assert is_served(attacked)


@pytest.mark.slow
def test_a_client_that_opens_no_window_is_hung_up_on(
    attacked: Served, connect: Callable[..., socket.socket]
) -> None:
    with Vitals(attacked):
        client = connect(b"\0\4\0\0\0\0")  # the first window of each call is nothing
        body = h2.message(request())
        for at in range(1, 101, 2):
            client.sendall(
                h2.frame(h2.HEADERS, h2.END_HEADERS, at, h2.head())
                + h2.frame(h2.DATA, h2.END_STREAM, at, body)
            )
        assert is_served(attacked)
        assert h2.is_closed(client, 120.0)


def test_a_client_that_reads_nothing_is_not_answered_into_memory(
    attacked: Served, connect: Callable[..., socket.socket]
) -> None:
    with Vitals(attacked):
        client = connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        live = "/inference.GRPCInferenceService/ServerLive"
        for at in range(1, 20_001, 2):
            part = h2.frame(h2.HEADERS, h2.END_HEADERS, at, h2.head(live))
            flood(client, part + h2.frame(h2.DATA, h2.END_STREAM, at, h2.message(b"")), 1)
            if at > 4000 and at % 1000 == 1 and not is_served(attacked):
                break
    assert is_served(attacked)


def test_an_idle_connection_is_told_goodbye(connect: Callable[..., socket.socket]) -> None:
    client = connect()
    received = b""
    while part := client.recv(65536):
        received += part
    assert h2.frame(h2.GOAWAY, 0, 0)[3:9] in received
