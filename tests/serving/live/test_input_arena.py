"""The input arena: room is taken and given back, and readers see what was written."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimsched.serving.live.memory import LEAST_BYTES, SLAB_BYTES, ArenaReader, InputArena, open_arena

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no shared memory here")


@pytest.fixture
def arena() -> Iterator[InputArena]:
    arena = open_arena()
    assert arena is not None
    yield arena
    arena.close()


def test_a_reader_sees_every_piece_whatever_comes_and_goes(arena: InputArena) -> None:
    arena.limit_bytes, rng = 4 * SLAB_BYTES, random.Random(0)
    reader, pieces, full = ArenaReader(arena.path), list[tuple[memoryview, int]](), 0
    for step in range(3000):
        if rng.random() < 0.55:
            piece = arena.take(rng.randrange(LEAST_BYTES, SLAB_BYTES // 8))
            full += piece is None
            if piece is not None:
                piece[0] = piece[-1] = step % 256
                pieces.append((piece, step % 256))
        elif pieces:
            piece, mark = pieces.pop(rng.randrange(len(pieces)))
            offset = arena.offset(piece)
            assert offset is not None
            assert offset // SLAB_BYTES == (offset + len(piece) - 1) // SLAB_BYTES, "in one slab"
            seen = reader.view(offset, len(piece))
            assert seen[0] == seen[-1] == mark
            arena.give_back(piece)
    assert full, "it was full at times"
    for piece, _ in pieces:
        arena.give_back(piece)
    assert arena.in_use_bytes == 0
    whole = [arena.take(SLAB_BYTES) for _ in range(4)]
    assert None not in whole, "nothing is lost to fragments"
    assert arena.take(LEAST_BYTES) is None


def test_small_and_huge_inputs_travel_in_messages(arena: InputArena) -> None:
    assert arena.take(LEAST_BYTES - 1) is None
    assert arena.take(SLAB_BYTES + 1) is None
    assert arena.offset(memoryview(bytearray(8))) is None


def test_several_inputs_lie_in_one_piece(arena: InputArena) -> None:
    raws = [memoryview(bytes([number]) * (LEAST_BYTES + number)) for number in (1, 2)]
    laid = arena.put(raws)
    assert laid is not None
    reader = ArenaReader(arena.path)
    for raw, view in zip(raws, laid, strict=True):
        offset = arena.offset(view)
        assert offset is not None
        assert offset % 256 == 0
        assert reader.view(offset, len(view)) == raw
    arena.give_back(laid[0])
    assert arena.in_use_bytes == 0


@pytest.mark.parametrize("limit_bytes", [96 * 2**20, 16 * 2**20, 2**20])
def test_a_small_limit_is_used_and_kept(arena: InputArena, limit_bytes: int) -> None:
    arena.limit_bytes = limit_bytes
    taken = []
    while (piece := arena.take(limit_bytes // 8)) is not None:
        taken.append(piece)
    assert limit_bytes // 2 <= arena.in_use_bytes <= limit_bytes
    for piece in taken:
        arena.give_back(piece)
    assert arena.take(limit_bytes // 4) is not None, "the largest body of a front fits"


def test_a_reader_refuses_what_lies_outside(arena: InputArena) -> None:
    assert arena.take(LEAST_BYTES) is not None
    with pytest.raises(ValueError, match="has no 10 bytes"):
        ArenaReader(arena.path).view(2**40, 10)


def test_another_process_reads_and_writes_its_own_part() -> None:
    arena = open_arena(parts=2)
    assert arena is not None
    code = (
        "from pathlib import Path; from slimsched.serving.live.memory import InputArena;"
        f"arena = InputArena(Path('{arena.path}'), part=1, parts=2);"
        "piece = arena.take(20_000); piece[:5] = b'hello'; print(arena.offset(piece))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert arena.view(int(done.stdout), 5) == b"hello", "the memory outlives its writer"
    assert not list(Path("/dev/shm").glob("*slim-inputs*")), "it has no name and takes nothing of /dev/shm"
    arena.close()
