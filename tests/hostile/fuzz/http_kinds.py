"""Attacks on HTTP/1.1: wrong requests, slow ones, large ones, and connections that are dropped."""

import gzip
import json
import re
import socket
import time
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

from attacker import Attacker, corpus, mutated

INFER = "/v2/models/slimresnet/infer"
IMAGE = bytes(range(256)) * 12
"""A picture as the shipped model takes it: 3 x 32 x 32 bytes."""


def infer_request(raw: bytes = IMAGE, **changes: object) -> bytes:
    """Return a request with a binary tensor, which the compiled line learns when it comes again."""
    tensor = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8"}
    asked: dict[str, object] = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}],
        "outputs": [{"name": "classes", "parameters": {"binary_data": True}}],
        "parameters": {"plan": "0.25"},
    }
    return json_request(INFER, {**asked, **changes}, raw)


def json_request(path: str, asked: object, raw: bytes | None = None) -> bytes:
    """Return a request with JSON, and behind it the bytes of tensors."""
    text = json.dumps(asked).encode()
    more = "" if raw is None else f"inference-header-content-length: {len(text)}\r\n"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text) + len(raw or b'')}\r\n{more}\r\n"
    return head.encode() + text + (raw or b"")


def http_mutate(one: Attacker) -> None:
    """Send changed inputs of the corpus, several on one connection, cut at random."""
    rng, inputs = one.rng, corpus("http")
    while one.goes_on:
        data = b"".join(mutated(rng, rng.choice(inputs), inputs) for _ in range(rng.choice([1, 1, 2, 5])))
        one.note(data)
        with one.connect(one.http_port) as client, suppress(OSError):
            one.send_in_parts(client, data)
            match rng.randrange(4):
                case 0:
                    client.shutdown(socket.SHUT_WR)
                    one.answers(client, 0.5)
                case 1:
                    pass  # reset at once
                case _:
                    one.answers(client, 0.05)


def http_known(one: Attacker) -> None:
    """Let the compiled line learn a head, then change single bytes of it."""
    rng = one.rng
    while one.goes_on:
        good = infer_request(id=str(rng.randrange(3)))
        with one.connect(one.http_port) as client, suppress(OSError):
            for _ in range(3):
                client.sendall(good)
                one.answers(client, 0.05)
            for _ in range(rng.randrange(1, 20)):
                bad = bytearray(good)
                bad[rng.randrange(len(good) - len(IMAGE) if rng.random() < 0.7 else len(good))] ^= (
                    1 << rng.randrange(8)
                )
                burst = rng.choice([b"", good, good * 5, good[: rng.randrange(len(good))]])
                data = rng.choice([burst + bytes(bad), bytes(bad) + burst, good * rng.randrange(1, 40)])
                one.note(data)
                one.send_in_parts(client, data, 3)
                if rng.random() < 0.2:
                    client.shutdown(socket.SHUT_WR)
                one.answers(client, 0.02)


def http_json(one: Attacker) -> None:
    """Send JSON of odd kinds where calls, goals and models are expected."""
    rng = one.rng
    values: list[object] = [
        None,
        True,
        -1,
        0,
        2**63,
        10**400,
        1e308,
        "",
        "x" * 5000,
        [],
        {},
        [[]] * 50,
        [1, 3, 32, 32],
        "BYTES",
    ]

    def changed(value: object, depth: int = 0) -> object:
        if rng.random() < 0.1 or depth > 6:
            return rng.choice(values)
        if isinstance(value, dict):
            return {
                str(key) if rng.random() < 0.97 else "x": changed(each, depth + 1)
                for key, each in value.items()
            }
        return [changed(each, depth + 1) for each in value] if isinstance(value, list) else value

    tensor = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8"}
    asked = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": 3072}}],
        "outputs": [
            {"name": "classes", "parameters": {"binary_data": True}},
            {"name": "logits", "parameters": {"classification": 3}},
        ],
        "parameters": {"deadline_ms": 500, "plan": "0.25", "min_accuracy": 50, "timeout": 10**6},
    }
    with one.connect(one.http_port) as client:
        for _ in range(30):
            if not one.goes_on:
                return
            path = rng.choice(
                [INFER] * 6 + ["/v2/goal", "/v2/repository/index", "/v2/models/x/versions/1/infer"]
            )
            data = json_request(path, changed(asked), rng.choice([None, IMAGE, IMAGE[:-1], b"", IMAGE * 3]))
            if rng.random() < 0.3:
                data = packed(rng, data)
            one.note(data)
            client.sendall(data)
            one.answers(client, 0.03)


def packed(rng: Random, data: bytes) -> bytes:
    """Compress the body of a request, mostly as its head says then."""
    head, _, body = data.partition(b"\r\n\r\n")
    coding, pack = rng.choice([(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
    body = pack(body * rng.choice([1, 1, 1, 1000]))[: rng.choice([None, None, -1])]
    head = re.sub(rb"content-length: \d+", b"content-length: %d" % len(body), head, count=1)
    return head + b"\r\ncontent-encoding: " + rng.choice([coding, coding, b"gzip"]) + b"\r\n\r\n" + body


def http_connects(one: Attacker) -> None:
    """Connect and reset as fast as possible, with nothing or part of a request sent."""
    good = infer_request()
    starts = [b"", b"", b"", b"G", good[:40], good[:-1], good, b"\x16\x03\x01"]
    while one.goes_on:
        start = one.rng.choice(starts)
        one.note(start)
        for _ in range(200):
            with one.connect(one.http_port) as client, suppress(OSError):
                if start:
                    client.send(start)
            if not one.goes_on:
                return


def http_slow(one: Attacker) -> None:
    """Send byte by byte on many connections, and read nothing on others."""
    good, page = infer_request(), b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 30
    with ExitStack() as stack:
        slow = [stack.enter_context(one.connect(one.http_port)) for _ in range(60)]
        deaf = [stack.enter_context(one.connect(one.http_port)) for _ in range(8)]
        for client in deaf:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                client.sendall(page)
        one.note(page)
        at = one.rng.randrange(300)
        for client in slow:
            client.sendall(good[:at])
        while one.goes_on:
            for client in slow:
                with suppress(OSError):
                    client.send(good[at : at + 1])
            at += 1
            time.sleep(0.02)


def http_large(one: Attacker) -> None:
    """Send heads without end, many headers, and bodies that are announced and never come."""
    rng = one.rng
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\n".encode()
    kinds = [
        head + b"x-long: " + b"y" * 60_000,
        head + b"x: y\r\n" * rng.choice([99, 101, 20_000]) + b"\r\n",
        head + b"content-length: 4000000\r\n\r\n" + b"x" * rng.choice([0, 70_000, 3_999_999]),
        head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000,
        head + b"transfer-encoding: chunked\r\n\r\n" + b"ffffffffffffffff\r\n",
        b"A" * 17_000 + b" / HTTP/1.1\r\n\r\n",
    ]
    with ExitStack() as stack:
        for _ in range(40):
            if not one.goes_on:
                return
            data = rng.choice(kinds)
            one.note(data)
            client = stack.enter_context(one.connect(one.http_port))
            client.settimeout(0.2)
            with suppress(OSError):
                client.sendall(data)
            one.answers(client, 0.01)


def http_shared_memory(one: Attacker) -> None:
    """Register regions with wrong names, offsets and sizes; let others shrink while they are read."""
    rng, name = one.rng, f"slim-fuzz-{one.number}"
    path = Path("/dev/shm") / name
    sizes: list[object] = [0, 1, 3071, 3072, 4096, -1, 2**31, 2**40, 2**63, 2**64, None, "1", 1.5]
    keys = [f"/{name}"] * 6 + [
        "",
        "/",
        "/../etc/passwd",
        "/" + "x" * 5000,
        "/slim\0x",
        f"/{name}/..",
        None,
        7,
        "/nothing",
    ]
    regions = ["one", "two", "a%2Fb", "..", "%00", "x" * 999]
    path.write_bytes(bytes(4096))
    try:
        with one.connect(one.http_port) as client:
            for _ in range(30):
                if not one.goes_on:
                    return
                data = _shared_memory_request(rng, rng.choice(regions), rng.choice(keys), sizes)
                one.note(data)
                client.sendall(data)
                path.open("r+b").truncate(rng.choice([0, 1, 3072, 4096, 4096, 8192]))
                one.answers(client, 0.03)
    finally:
        path.unlink(missing_ok=True)


def _shared_memory_request(rng: Random, region: str, key: object, sizes: list[object]) -> bytes:
    root = f"/v2/{rng.choice(['system', 'system', 'cuda'])}sharedmemory"
    match rng.randrange(4):
        case 0:
            return json_request(f"{root}/region/{region}/unregister", {})
        case 1:
            place = {"shared_memory_region": region, "shared_memory_byte_size": rng.choice([3072, *sizes])}
            place["shared_memory_offset"] = rng.choice([0, 0, *sizes])
            tensor = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "parameters": place}
            output = {"name": "logits", "parameters": place if rng.random() < 0.4 else {}}
            return json_request(INFER, {"inputs": [tensor], "outputs": [output]})
        case _:
            given = {
                "key": key,
                "offset": rng.choice([0, 0, *sizes]),
                "byte_size": rng.choice([4096, 4096, *sizes]),
            }
            return json_request(f"{root}/region/{region}/register", given)


KINDS = {
    "http-mutate": http_mutate,
    "http-known": http_known,
    "http-json": http_json,
    "http-connects": http_connects,
    "http-slow": http_slow,
    "http-large": http_large,
    "http-shared-memory": http_shared_memory,
}
