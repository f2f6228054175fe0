"""A region of shared memory that a client registered: the server copies from it and into it.

The region is never mapped. A client may shorten its memory at any time, and a process that reads a mapping
beyond the end dies of SIGBUS. A read through the file just ends early, and the call is refused.
"""

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from slimsched.serving.api.refusal import BadRequest, Unavailable
from slimsched.serving.live.memory import PREFIX

Size = Annotated[int, Meta(ge=0, le=2**40)]
SHARED = Path("/dev/shm")
"""Where the system keeps named shared memory."""

_KEY = re.compile(r"/*([^/\0]{1,255})")
NOT_FOR_CLIENTS = (PREFIX, "sem.")
"""Shared memory of servers like this one, with what became of other requests; and semaphores."""


class Place(Struct, frozen=True, kw_only=True):
    """Where a tensor lies in shared memory, in the words of the protocol; no region: not there."""

    shared_memory_region: Annotated[str, Meta(max_length=1000)] = ""
    shared_memory_offset: Size = 0
    shared_memory_byte_size: Size = 0


class RegionEntry(Struct, frozen=True, kw_only=True):
    """A registered region; `number` tells apart two that had the same name, one after the other."""

    number: int
    name: str
    key: str
    offset: int
    byte_size: int
    path: str  # the file as the gateway has it open, which other processes of its user can open too
    inode: int


class SharedRegion:
    """The open file of a region. It is closed when nobody needs it: neither the registry nor a call."""

    __slots__ = ("_file", "entry")

    def __init__(self, entry: RegionEntry, file: int) -> None:
        self.entry, self._file = entry, file

    def __del__(self) -> None:
        """Close the file with the last reference."""
        with suppress(OSError):
            os.close(self._file)

    def read(self, offset: int, into: memoryview) -> None:
        """Copy bytes of the region; refuse if its memory ends before."""
        done = 0
        while done < len(into):
            count = os.preadv(self._file, [into[done:]], self.entry.offset + offset + done)
            if not count:
                raise self._too_small()
            done += count

    def reserve(self, offset: int, size: int) -> None:
        """Make sure that this number of bytes can be written; refuse if not."""
        start = self.entry.offset + offset
        if os.fstat(self._file).st_size < start + size:
            raise self._too_small()
        try:
            os.posix_fallocate(self._file, start, size)
        except OSError as error:
            raise Unavailable(
                f"shared memory region '{self.entry.name}' cannot be written: {error.strerror}"
            ) from None

    def write(self, offset: int, raw: memoryview) -> None:
        """Copy bytes into the region."""
        done = 0
        while done < len(raw):
            done += os.pwrite(self._file, raw[done:], self.entry.offset + offset + done)

    def _too_small(self) -> BadRequest:
        return BadRequest(
            f"the shared memory of region '{self.entry.name}' is smaller now than when it was registered; "
            "register it again"
        )


class RegionPart(Struct, frozen=True):
    """The part of a region where a tensor lies, or is to be written."""

    region: SharedRegion
    offset: int
    byte_size: int

    def check(self, what: str, size: int) -> None:
        """Refuse an output that does not fit."""
        if size > self.byte_size:
            raise BadRequest(
                f"{what} takes {size} bytes, but shared_memory_byte_size is {self.byte_size}; give more room"
            )


def filled(place: Place, size: int) -> dict[str, str | int]:
    """Return the parameters of an output that was written to a place, with its size in bytes."""
    return {
        "shared_memory_region": place.shared_memory_region,
        "shared_memory_offset": place.shared_memory_offset,
        "shared_memory_byte_size": size,
    }


def write_parts(answers: Sequence[tuple[RegionPart, bytes]]) -> None:
    """Write answers into their parts: all of them, or none if one cannot be written."""
    for part, raw in answers:
        part.region.reserve(part.offset, len(raw))
    for part, raw in answers:
        part.region.write(part.offset, memoryview(raw))


def open_shared(key: str, end: int) -> int:
    """Open POSIX shared memory by its key, and check that it is this user's and has `end` bytes at least."""
    matched = _KEY.fullmatch(key)
    if matched is None or matched[1] in (".", "..") or matched[1].startswith(NOT_FOR_CLIENTS):
        raise BadRequest(
            f"key '{key}' is not accepted; give the name of your own POSIX shared memory, such as '/my_data'"
        )
    try:
        file = os.open(SHARED / matched[1], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadRequest(f"shared memory '{key}' cannot be opened: {why}; create it first") from None
    try:
        _check_file(key, end, os.fstat(file))
    except BadRequest:
        os.close(file)
        raise
    return file


def _check_file(key: str, end: int, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadRequest(f"'{key}' is not shared memory; create it with shm_open")
    if status.st_uid != os.geteuid():
        raise BadRequest(f"shared memory '{key}' belongs to another user; run as the server's user")
    if status.st_size < end:
        raise BadRequest(
            f"shared memory '{key}' has {status.st_size} bytes, but offset and byte_size end at {end}; "
            "give less, or create it larger"
        )
