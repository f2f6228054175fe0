"""A gateway ends in a stated time whatever clients and servers do, and at once when told twice."""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from served import Served

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def test_clients_that_do_not_read_or_finish_do_not_keep_it_from_ending(
    own_server: Callable[..., Served],
) -> None:
    served = own_server("--limit", "drain_s=2")
    host, port = served.http.split(":")
    clients = [socket.create_connection((host, int(port)), timeout=5) for _ in range(30)]
    for client in clients[:10]:
        client.settimeout(0.2)
        try:
            for _ in range(400):
                client.sendall(GET * 1000)
        except TimeoutError:
            pass
    for client in clients[10:20]:
        client.sendall(
            b"POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\nhalf"
        )
    for client in clients[20:]:
        client.sendall(b"GET /dashboard/frames HTTP/1.1\r\nhost: x\r\n\r\n")
    began_s = time.monotonic()
    assert served.stop(patience_s=30) == 0
    assert time.monotonic() - began_s < 15
    for client in clients:
        client.close()


def test_a_second_signal_ends_it_at_once(own_server: Callable[..., Served]) -> None:
    served = own_server("--limit", "drain_s=600")
    servers = served.children()
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)  # the request below will not be answered
    try:
        end_twice(served)
        give_up_s = time.monotonic() + 5.0  # they are killed; the system takes a moment to clear them away
        while any(os.path.exists(f"/proc/{pid}") for pid in servers):
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
    finally:
        for pid in servers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_twice(served: Served) -> None:
    host, port = served.http.split(":")
    body = (
        b'{"inputs":[{"name":"images","shape":[1,3,32,32],"datatype":"UINT8","data":['
        + b",".join([b"1"] * 3072)
        + b"]}]}"
    )
    with socket.create_connection((host, int(port)), timeout=5) as client:
        head = b"POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        client.sendall(head + body)
        time.sleep(0.3)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(1.0)
        assert served.process.poll() is None, "it waits for the request"
        began_s = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(timeout=30)
        assert time.monotonic() - began_s < 10
