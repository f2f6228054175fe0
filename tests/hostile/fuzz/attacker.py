"""What every kind of attack uses: sockets to the server, a corpus, and a memory of what was sent."""

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from pathlib import Path
from queue import Full
from random import Random
from typing import Any

CORPUS = Path(__file__).parents[1] / "corpus"
KEPT_INPUTS = 20
SOURCE = "127.0.0.2"
"""Attackers come from an address of their own: limits per address must not refuse clients that behave."""


@dataclass(frozen=True)
class Board:
    """What attackers, good clients and the watch share, each in a process of its own."""

    alarms: "Synchronized[int]"  # grows when something went wrong; attackers then save what they sent
    kinds: "SynchronizedArray[int]"  # which kind each attacker carries out; -1: none
    inputs: "SynchronizedArray[int]"  # by kind
    statuses: "SynchronizedArray[int]"  # HTTP answers that attackers have seen, by status
    is_up: "Synchronized[int]"  # whether the server is there
    faults: Any  # a queue of (what, example)

    def fault(self, what: str, example: str) -> None:
        """Tell that something went wrong."""
        with suppress(Full):
            self.faults.put_nowait((what, example))


@dataclass
class Attacker:
    """One attacker, for one turn of one kind."""

    name: str
    number: int
    rng: Random
    http_port: int
    grpc_port: int
    until_s: float
    board: Board
    found: Path
    sent: deque[bytes] = field(default_factory=lambda: deque(maxlen=KEPT_INPUTS))
    seen_alarms: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether the turn is not over, and there is a server."""
        if self.board.alarms.value != self.seen_alarms:
            self.seen_alarms = self.board.alarms.value
            self._save()
        return time.monotonic() < self.until_s and bool(self.board.is_up.value)

    def _save(self) -> None:
        """Keep what was sent last: one of these inputs may have done it."""
        folder = self.found / f"{self.seen_alarms:03}-{self.name}-{self.number}"
        folder.mkdir(parents=True, exist_ok=True)
        for at, data in enumerate(self.sent):
            (folder / f"{at:02}").write_bytes(data[: 2**20])

    def note(self, data: bytes) -> None:
        """Remember an input."""
        self.sent.append(data)
        kind = self.board.kinds[self.number]
        self.board.inputs[kind] += 1

    def connect(self, port: int) -> socket.socket:
        """Open a connection that is reset when it is closed."""
        one = socket.socket()
        one.settimeout(3.0)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            one.bind((SOURCE, 0))
            one.connect(("127.0.0.1", port))
        except OSError:
            one.close()
            raise
        return one

    def flood(self, one: socket.socket, data: bytes) -> bool:
        """Send, and throw away what comes; return whether the connection is still open."""
        rest = memoryview(data)
        one.setblocking(False)
        while rest and self.goes_on:
            readable, writable, _ = select.select([one], [one], [], 0.2)
            try:
                if readable and not one.recv(2**18):
                    return False
                if writable:
                    rest = rest[one.send(rest[: 2**18]) :]
            except BlockingIOError:
                pass
            except OSError:
                return False
        return True

    def send_in_parts(self, one: socket.socket, data: bytes, most_parts: int = 6) -> None:
        """Send bytes, cut at random."""
        one.settimeout(1.0)
        cuts = sorted(self.rng.randint(0, len(data)) for _ in range(self.rng.randint(0, most_parts - 1)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            one.sendall(data[start:end])
            if self.rng.random() < 0.3:
                time.sleep(self.rng.choice([0.0, 0.001, 0.005]))

    def answers(self, one: socket.socket, within_s: float) -> bytes:
        """Read what comes until nothing more does, and count the HTTP statuses in it."""
        one.settimeout(within_s)
        received = b""
        with suppress(OSError):
            while len(received) < 2**20 and (part := one.recv(65536)):
                received += part
        for part in received.split(b"HTTP/1.1 ")[1:]:
            if part[:3].isdigit():
                self.board.statuses[min(599, int(part[:3]))] += 1
        return received


def corpus(kind: str) -> list[bytes]:
    """Return the inputs that are kept in the repository, of one protocol."""
    return [one.read_bytes() for one in sorted((CORPUS / kind).iterdir())]


SPECIAL = (
    b"\r\n",
    b"\0",
    b"\xff" * 4,
    b"-1",
    b"0",
    b"99999999999999999999",
    b"\r\n\r\n",
    b"NaN",
    b"1e999",
    b"{",
    b'"',
)


def mutated(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes at random: flip, cut, repeat, insert, or join with another input."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(len(out) + 1)
        size = rng.choice([1, 1, 2, 4, 16, 200])
        match rng.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size] * rng.choice([1, 2, 50])
            case 4:
                out[at:at] = rng.choice(SPECIAL)
            case 5:
                out[at : at + size] = rng.randbytes(size)
            case _:
                other = rng.choice(others)
                out[at:] = other[rng.randrange(len(other) + 1) :]
        if len(out) > 2**18:
            del out[2**18 :]
    return bytes(out)
