"""Large bodies go straight into the input arena, however their bytes are cut, and leave nothing behind."""

import os
import random
from collections.abc import Iterator

import pytest

from slimsched.serving.api.http_requests import RequestReader, Stage
from slimsched.serving.api.limits import Limits
from slimsched.serving.live.memory import LEAST_BYTES, InputArena, open_arena

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no shared memory here")
JSON_BYTES = 100


@pytest.fixture
def arena() -> Iterator[InputArena]:
    arena = open_arena()
    assert arena is not None
    yield arena
    arena.close()


def message(body: bytes) -> bytes:
    lengths = f"content-length: {len(body)}\r\ninference-header-content-length: {JSON_BYTES}"
    return f"POST /v2 HTTP/1.1\r\nhost: x\r\n{lengths}\r\n\r\n".encode() + body


def feed(reader: RequestReader, data: bytes) -> None:
    """Feed bytes as a connection does: up to the end of a head or of a body at a time."""
    at = 0
    while at < len(data):
        end = min(len(data), reader.step(data, at))
        reader.feed(memoryview(data)[at:end])
        at = end


@pytest.mark.parametrize("seed", range(8))
def test_requests_are_the_same_however_they_are_cut(arena: InputArena, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 10, LEAST_BYTES // 2, LEAST_BYTES, 5 * LEAST_BYTES]) for _ in range(12)]
    bodies = [rng.randbytes(size) for size in sizes]
    reader, stream, at = RequestReader(Limits(body_bytes=2**20), arena), b"".join(map(message, bodies)), 0
    while at < len(stream):
        size = rng.choice([1, 3, 1000, 70_000])
        feed(reader, stream[at : at + size])
        at += size
    assert [bytes(request.body) for request in reader.complete] == bodies
    assert all(request.keep_alive and request.method == "POST" for request in reader.complete)
    for request, body in zip(list(reader.complete), bodies, strict=True):
        assert (request.room is not None) == (len(body) >= LEAST_BYTES)
        if isinstance(request.body, memoryview):
            offset = arena.offset(request.body[JSON_BYTES:])
            assert offset is not None
            assert offset % 64 == 0, "tensors are aligned"
    reader.close()
    assert arena.in_use_bytes == 0


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(arena: InputArena) -> None:
    reader = RequestReader(Limits(body_bytes=2**20), arena)
    feed(reader, message(bytes(4 * LEAST_BYTES))[:LEAST_BYTES])
    assert reader.stage is Stage.BODY
    assert arena.in_use_bytes
    reader.close()
    assert arena.in_use_bytes == 0


def test_a_chunked_body_is_read_as_any_other(arena: InputArena) -> None:
    reader = RequestReader(Limits(body_bytes=2**20), arena)
    part = bytes(LEAST_BYTES)
    feed(reader, b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(2):
        feed(reader, f"{len(part):x}\r\n".encode() + part + b"\r\n")
    feed(reader, b"0\r\n\r\n")
    (request,) = reader.complete
    assert bytes(request.body) == 2 * part
    assert request.room is None
