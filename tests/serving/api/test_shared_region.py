"""Regions of shared memory without a server: what may be opened, who keeps it open, all or nothing."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from slimsched.serving.api.calls import Loan
from slimsched.serving.api.limits import BadRequest, Ledger, Limits, Unavailable
from slimsched.serving.api.shared_memory import (
    RegionPart,
    RegionSpan,
    Registration,
    SharedMemory,
    SharedMemoryControl,
    open_shared,
    write_parts,
)
from slimsched.serving.live.memory import InputArena, open_arena


class CallHandler:
    """What lends memory to calls."""

    def __init__(self, arena: InputArena | None = None) -> None:
        self.ledger, self.limits, self.arena = Ledger(), Limits(held_bytes=2**20), arena
        self.memory = SharedMemory(self.ledger, is_allowed=True)
        self.control = SharedMemoryControl(self.memory, lambda: self.limits)

    def register(self, name: str, path: Path, size: int, offset: int = 0) -> None:
        given = Registration(key=path.name, byte_size=size, offset=offset)
        asyncio.run(self.control.register(name, given))

    def part(self, size: int, offset: int = 0, region: str = "in") -> RegionPart:
        place = RegionSpan(
            shared_memory_region=region, shared_memory_offset=offset, shared_memory_byte_size=size
        )
        return self.memory.find(place, "input 'x'")


@pytest.fixture
def file() -> Iterator[Path]:
    """Shared memory with the bytes 0 to 99."""
    path = Path("/dev/shm") / f"test_{uuid4().hex}"
    path.write_bytes(bytes(range(100)))
    yield path
    path.unlink(missing_ok=True)


def open_files() -> int:
    """Count this process's open files in shared memory; others may be closed at any time."""
    folder, count = Path("/proc/self/fd"), 0
    for one in os.listdir(folder):
        try:
            count += os.readlink(folder / one).startswith("/dev/shm/")
        except OSError:  # the folder itself, closed by now
            continue
    return count


def test_a_part_is_copied_from_where_the_region_begins(file: Path) -> None:
    handler = CallHandler()
    handler.register("in", file, 50, offset=10)
    with Loan(handler) as loan:
        copy = loan.read(handler.part(5, offset=20))
        assert bytes(copy) == bytes(range(30, 35))
        file.write_bytes(bytes(100))
        assert bytes(copy) == bytes(range(30, 35)), "its client cannot change it any more"
        assert handler.ledger.held_bytes == 5
    assert handler.ledger.held_bytes == 0


def test_large_parts_lie_in_the_arena_until_the_call_ends(file: Path) -> None:
    arena = open_arena()
    assert arena is not None
    file.write_bytes(bytes(40_000))
    handler = CallHandler(arena)
    handler.register("in", file, 40_000)
    try:
        with Loan(handler) as loan:
            assert arena.offset(loan.read(handler.part(20_000))) is not None
            os.truncate(file, 0)
            with pytest.raises(BadRequest):
                loan.read(handler.part(20_000))
            assert arena.in_use_bytes >= 40_000
        assert arena.in_use_bytes == 0
        assert handler.ledger.held_bytes == 0
    finally:
        arena.close()


def test_calls_together_take_no_more_than_half_of_what_may_be_held(file: Path) -> None:
    os.truncate(file, 2**20)
    handler = CallHandler()
    handler.register("in", file, 2**20)
    with Loan(handler) as one, Loan(handler) as other:
        one.read(handler.part(2**19))
        with pytest.raises(Unavailable, match="too many bytes of requests are under way"):
            other.read(handler.part(1))


def test_a_region_stays_open_for_calls_under_way_and_no_longer(file: Path) -> None:
    handler, before = CallHandler(), open_files()
    handler.register("out", file, 100)
    part = handler.part(4, offset=8, region="out")
    asyncio.run(handler.control.unregister("out"))
    write_parts([(part, b"abcd")])
    assert file.read_bytes()[8:12] == b"abcd"
    assert open_files() == before + 1
    del part
    assert open_files() == before


def test_all_outputs_are_written_or_none(file: Path) -> None:
    handler = CallHandler()
    handler.register("out", file, 100)
    parts = handler.part(4, region="out"), handler.part(4, offset=90, region="out")
    os.truncate(file, 50)
    with pytest.raises(BadRequest, match="is smaller now than when it was registered"):
        write_parts([(parts[0], b"abcd"), (parts[1], b"efgh")])
    assert file.read_bytes() == bytes(range(50)), "neither written nor made larger"


def test_only_this_users_own_shared_memory_is_opened(file: Path, tmp_path: Path) -> None:
    link = file.with_name(f"{file.name}-link")
    pipe = file.with_name(f"{file.name}-pipe")
    folder = file.with_name(f"{file.name}-folder")
    arena = file.with_name(f"slim-{file.name}")
    link.symlink_to(file)
    os.mkfifo(pipe)
    folder.mkdir()
    arena.write_bytes(bytes(10))
    before = open_files()
    try:
        for key in (link.name, pipe.name, folder.name, arena.name, "..", f"../shm/{file.name}", "a\0b", ""):
            with pytest.raises(BadRequest):
                open_shared(key, 1)
        with pytest.raises(BadRequest, match="has 100 bytes, but offset and byte_size end at 101"):
            open_shared(file.name, 101)
        for key in (file.name, f"/{file.name}", f"//{file.name}"):  # glibc takes all of these
            os.close(open_shared(key, 100))
    finally:
        for one in (link, pipe, arena):
            one.unlink()
        folder.rmdir()
    assert open_files() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_memory_of_another_user_is_refused(file: Path) -> None:
    os.chown(file, 12345, 12345)
    with pytest.raises(BadRequest, match="belongs to another user; run as the server's user"):
        open_shared(file.name, 1)


def test_regions_are_bounded_in_number_and_bytes(file: Path) -> None:
    handler = CallHandler()
    handler.limits = replace(handler.limits, shared_regions=2, shared_bytes=150)
    handler.register("a", file, 100)
    with pytest.raises(BadRequest, match="would have 151 bytes, 150 are the limit"):
        handler.register("b", file, 51)
    handler.register("b", file, 50)
    with pytest.raises(BadRequest, match="2 shared memory regions are registered, which is the limit"):
        handler.register("c", file, 1)
    asyncio.run(handler.control.unregister("a"))
    handler.register("c", file, 1)


def test_another_process_follows_the_files_not_their_names(file: Path) -> None:
    handler, front = CallHandler(), CallHandler()
    handler.register("in", file, 100)
    file.unlink()
    front.memory.follow(handler.control.entries)
    region = front.memory.regions["in"]
    with Loan(front) as loan:
        assert bytes(loan.read(front.part(3, offset=7))) == bytes([7, 8, 9])
    front.memory.follow(handler.control.entries)
    assert front.memory.regions["in"] is region, "what it knows is not opened again"
    wrong = [replace(one, number=2, inode=one.inode + 1) for one in handler.control.entries]
    front.memory.follow(wrong)
    assert front.memory.regions == {}
