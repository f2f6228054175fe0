"""gRPC clients may ask whether the connection lives; those that ask without end are sent away."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import raw_http2 as raw
from served import Served, serve

EVERY_S, TIMES = 5.0, 6
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose calls the gRPC library reads, as with TLS."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SLIM_PURE", "1")
        running = serve(tmp_path_factory.mktemp("library"))
    yield running
    assert running.stop() == 0


def frames(client: socket.socket, within_s: float) -> tuple[list[int], bool]:
    """Return the kinds of the frames that come in this time, and whether the connection is open still."""
    data, until_s, is_open = b"", time.monotonic() + within_s, True
    while is_open and (left_s := until_s - time.monotonic()) > 0:
        client.settimeout(left_s)
        try:
            part = client.recv(65536)
        except TimeoutError:
            break
        data, is_open = data + part, bool(part)
    kinds = []
    while len(data) >= 9:
        kinds.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return kinds, is_open


def ping(number: int) -> bytes:
    return raw.frame(raw.PING, 0, 0, number.to_bytes(8, "big"))


@pytest.mark.slow
def test_a_ping_every_five_seconds_is_fine_with_and_without_a_stream(library: Served, served: Served) -> None:
    """The library reads the calls of one server, the compiled line those of the other."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(keeps_alive, one.grpc) for one in (library, served)]:
            done.result()


def keeps_alive(address: str) -> None:
    """Ping over an idle connection and over one with an open stream; both must stay."""
    idle, busy = raw.connect(address), raw.connect(address)
    for client in (idle, busy):
        client.sendall(raw.frame(raw.SETTINGS, 1, 0))  # the answer to those of the server
    busy.sendall(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.head(STREAM)))
    with idle, busy:
        for number in range(TIMES):
            for client in (idle, busy):
                client.sendall(ping(number))
            for client in (idle, busy):
                kinds, is_open = frames(client, EVERY_S / 2)
                assert is_open
                assert raw.PING in kinds, "it is answered"
                assert raw.GOAWAY not in kinds


def test_a_flood_of_pings_ends(library: Served) -> None:
    with raw.connect(library.grpc) as client:
        try:
            for number in range(20):
                client.sendall(ping(number))
                time.sleep(0.01)
        except ConnectionError:
            return
        kinds, is_open = frames(client, 5.0)
        assert raw.GOAWAY in kinds or not is_open
