"""Floods that once ended a server, without a token: memory stays flat, health quick, others are served."""

import http.client
import socket
import time
from collections.abc import Callable
from functools import partial

import grpc
import pytest

import attacks
import raw_http2 as h2
from good_client import GoodClient, http_head, request
from served import Served
from vitals import Vitals, open_files

pytestmark = pytest.mark.slow

MIB = 2**20
SECONDS = 4.0
ENOUGH = 500
PARTIAL = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.head()) + h2.frame(h2.DATA, 0, 1, b"\0\0\x10\0\0")

RESETS: dict[str, Callable[[str, float], int]] = {
    "with code 0": attacks.rapid_resets,
    "with code 0, ended": partial(attacks.rapid_resets, ends=True),
    "cancelled": partial(attacks.rapid_resets, code=8),
    "cancelled, ended": partial(attacks.rapid_resets, code=8, ends=True),
    "over many connections": attacks.reconnecting_resets,
    "over many connections, with larger heads": partial(attacks.reconnecting_resets, repeated=7),
}

FRAMES = {
    "window updates": (h2.frame(h2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), b""),
    "parts of one byte": (h2.frame(h2.DATA, 0, 1, b"x"), PARTIAL),
    "unknown frames": (h2.frame(99, 0, 0, b"unknown"), b""),
    "pings": (h2.frame(h2.PING, 0, 0, b"12345678"), b""),
}


def survives(served: Served, attack: Callable[[], int], least: int) -> Vitals:
    """Run an attack of at least this size beside two clients that behave."""
    with (
        GoodClient(served, "grpc", least=ENOUGH),
        GoodClient(served, "http", least=ENOUGH),
        Vitals(served, 50 * MIB) as vitals,
    ):
        assert attack() >= least, "it was no attack"
    return vitals


def turned_away(served: Served, protocol: str, reason: str) -> float:
    """Return how often the metrics say that clients were turned away; they are counted once per second."""
    time.sleep(1.1)
    return served.metric(f'slim_turned_away_total{{protocol="{protocol}",reason="{reason}"}}')


@pytest.mark.parametrize("resets", RESETS)
def test_calls_that_are_taken_back(attacked: Served, resets: str) -> None:
    reason = "heads" if "larger heads" in resets else "resets"
    before = turned_away(attacked, "grpc", reason)
    survives(attacked, lambda: RESETS[resets](attacked.grpc, SECONDS), least=50)
    assert turned_away(attacked, "grpc", reason) > before
    assert "turned away in a second" in attacked.log.read_text()


def test_calls_without_messages_do_not_take_the_places_of_others(attacked: Served) -> None:
    survives(attacked, lambda: attacks.calls_without_messages(attacked.grpc, SECONDS), least=2000)
    assert turned_away(attacked, "grpc", "unsent") > 0


@pytest.mark.parametrize(
    "sends", [b"", b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["silent", "asking"]
)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_connections_that_are_reset(attacked: Served, protocol: str, sends: bytes) -> None:
    files = open_files(attacked)
    address = getattr(attacked, protocol)
    vitals = survives(attacked, lambda: attacks.connects(address, SECONDS, sends=sends), least=1000)
    assert vitals.most_files < files + 1100
    give_up_s = time.monotonic() + 10
    while open_files(attacked) > files + 8:
        assert time.monotonic() < give_up_s, "descriptors stay open"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_that_mean_nothing_end_their_connection(attacked: Served, kind: str) -> None:
    data, before = FRAMES[kind]
    survives(attacked, lambda: attacks.frames(attacked.grpc, SECONDS, 1000 * data, before), least=10)
    assert turned_away(attacked, "grpc", "frames") > 0


def test_a_header_that_is_repeated_is_refused(attacked: Served) -> None:
    before = turned_away(attacked, "grpc", "heads")
    call = attacks.Call(authorization="Bearer " + "y" * 3700)
    with attacks.connect(attacked.grpc) as client:
        client.sendall(call.hello)
        client.sendall(h2.frame(h2.HEADERS, h2.END_HEADERS, 3, call.again + call.index["authorization"]))
        assert turned_away(attacked, "grpc", "heads") == before + 1


def test_one_address_may_not_have_all_streams(attacked: Served) -> None:
    stream = "/inference.GRPCInferenceService/ModelStreamInfer"
    with attacks.connect(attacked.grpc, "127.0.0.2") as greedy:
        calls = [h2.frame(h2.HEADERS, h2.END_HEADERS, at, h2.head(stream)) for at in range(1, 101, 2)]
        greedy.sendall(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + b"".join(calls))
        assert h2.reads_status(greedy, 10.0), "no stream was refused"
        with grpc.insecure_channel(attacked.grpc) as channel:
            answers = channel.stream_stream(stream)(iter([request()]), timeout=20)
            assert len(list(answers)) == 1


def test_a_client_that_sends_no_more_has_its_answer(attacked: Served) -> None:
    head = http_head()
    body = head + bytes(3072)
    asks = (
        f"POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        f"inference-header-content-length: {len(head)}\r\n\r\n"
    ).encode() + body
    for _ in range(50):
        with attacks.connect(attacked.http) as client:
            client.sendall(asks)
            client.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert answer.status == 200
            assert answer.read()
            assert not client.recv(1), "the connection ends after the answer"


def test_a_client_that_keeps_its_connection_alive_may_wait(attacked: Served) -> None:
    """gRPC's own keepalive, oftener than the gateway closes idle connections."""
    options = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1)]
    options += [("grpc.http2.max_pings_without_data", 0), ("grpc.enable_retries", 0)]
    states = list[grpc.ChannelConnectivity]()
    with grpc.insecure_channel(attacked.grpc, options=options) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        channel.subscribe(states.append)
        time.sleep(4.0)  # idle_s is 2
    assert grpc.ChannelConnectivity.IDLE not in states
    assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states
