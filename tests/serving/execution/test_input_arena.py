"""The input arena: room is taken and given back, and readers see what was written."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimsched.serving.execution.live.input_arena import (
    LEAST_BYTES,
    SHARED,
    SLAB_BYTES,
    ArenaReader,
    InputArena,
)

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no shared memory here")


@pytest.fixture
def path() -> Iterator[Path]:
    path = SHARED / "slim-test-arena"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


def test_a_reader_sees_every_piece_whatever_comes_and_goes(path: Path) -> None:
    arena, rng = InputArena(path, 4 * SLAB_BYTES), random.Random(0)
    reader, pieces, full = ArenaReader(path), list[tuple[memoryview, int]](), 0
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


def test_small_and_huge_inputs_travel_in_messages(path: Path) -> None:
    arena = InputArena(path)
    assert arena.take(LEAST_BYTES - 1) is None
    assert arena.take(SLAB_BYTES + 1) is None
    assert arena.offset(memoryview(bytearray(8))) is None


def test_several_inputs_lie_in_one_piece(path: Path) -> None:
    arena = InputArena(path)
    raws = [memoryview(bytes([number]) * (LEAST_BYTES + number)) for number in (1, 2)]
    laid = arena.put(raws)
    assert laid is not None
    reader = ArenaReader(path)
    for raw, view in zip(raws, laid, strict=True):
        offset = arena.offset(view)
        assert offset is not None
        assert offset % 256 == 0
        assert reader.view(offset, len(view)) == raw
    arena.give_back(laid[0])
    assert arena.in_use_bytes == 0


def test_a_reader_refuses_what_lies_outside(path: Path) -> None:
    arena = InputArena(path, SLAB_BYTES)
    assert arena.take(LEAST_BYTES) is not None
    with pytest.raises(ValueError, match="has no 10 bytes"):
        ArenaReader(path).view(2**40, 10)
