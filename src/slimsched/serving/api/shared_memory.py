"""Shared memory that clients register, so that tensors need not travel in requests.

`SharedMemoryControl` carries out what clients ask of the gateway; `SharedMemory` finds the regions in each
process that reads requests.
"""

import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slimsched.serving.api.limits import (
    Account,
    BadRequest,
    Forbidden,
    Ledger,
    Limits,
    NotFound,
    NotOffered,
    Unavailable,
)
from slimsched.serving.live.memory import PREFIX, path_of

# -- A region of shared memory that a client registered: the server copies from it and into it.
#
# The region is never mapped. A client may shorten its memory at any time, and a process that reads a mapping
# beyond the end dies of SIGBUS. A read through the file just ends early, and the call is refused.

Size = Annotated[int, Meta(ge=0, le=2**40)]
SHARED = Path("/dev/shm")
"""Where the system keeps named shared memory."""

_KEY = re.compile(r"/*([^/\0]{1,255})")
NOT_FOR_CLIENTS = (PREFIX, "sem.")
"""Shared memory of servers like this one, with what became of other requests; and semaphores."""


class RegionSpan(Struct, frozen=True, kw_only=True):
    """Where a tensor lies in shared memory, in the words of the protocol; no region: not there."""

    shared_memory_region: Annotated[str, Meta(max_length=1000)] = ""
    shared_memory_offset: Size = 0
    shared_memory_byte_size: Size = 0

    @property
    def place(self) -> "RegionSpan | None":
        """This span if it names a region; None if the tensor lies in the message."""
        return self if self.shared_memory_region else None


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


def filled(place: RegionSpan, size: int) -> dict[str, str | int]:
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
    status, wrong = os.fstat(file), ""
    if not stat.S_ISREG(status.st_mode):
        wrong = f"'{key}' is not shared memory; create it with shm_open"
    elif status.st_uid != os.geteuid():
        wrong = f"shared memory '{key}' belongs to another user; run as the server's user"
    elif status.st_size < end:
        wrong = (
            f"shared memory '{key}' has {status.st_size} bytes, but offset and byte_size end at {end}; "
            "give less, or create it larger"
        )
    if wrong:
        os.close(file)
        raise BadRequest(wrong)
    return file


log = logging.getLogger("slim.memory")


class SharedMemory:
    """Finds regions by name. In a front, the regions are those that the gateway names."""

    def __init__(self, ledger: Ledger, *, is_allowed: bool = False) -> None:
        self.is_allowed = is_allowed
        self.regions: dict[str, SharedRegion] = {}
        self.account: Account = ledger.open("shared memory")

    def find(self, place: RegionSpan, what: str) -> RegionPart:
        """Return the part of a region that a request names for a tensor; refuse one that is not there."""
        if not self.is_allowed:
            raise switched_off()
        name, offset = place.shared_memory_region, place.shared_memory_offset
        size = place.shared_memory_byte_size
        region = self.regions.get(name)
        if region is None:
            raise BadRequest(f"{what}: no shared memory region '{name}' is registered; register it first")
        if not size:
            raise BadRequest(f"{what}: shared_memory_byte_size is missing; give the tensor's size in bytes")
        if offset + size > region.entry.byte_size:
            raise BadRequest(
                f"{what}: {size} bytes at {offset} are beyond the end of region '{name}', "
                f"which has {region.entry.byte_size} bytes"
            )
        return RegionPart(region, offset, size)

    def follow(self, entries: Iterable[RegionEntry]) -> None:
        """Know these regions from now on, as the gateway has them open."""
        old, self.regions = self.regions, {}
        for entry in entries:
            region = old.get(entry.name)
            if region is None or region.entry.number != entry.number:
                region = _open_file(entry)
            if region is not None:
                self.regions[entry.name] = region


def _open_file(entry: RegionEntry) -> SharedRegion | None:
    try:
        file = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        log.warning("shared memory region '%s' cannot be opened here: %s", entry.name, error)
        return None
    region = SharedRegion(entry, file)
    return region if os.fstat(file).st_ino == entry.inode else None  # else it was unregistered meanwhile


def switched_off() -> Forbidden:
    """What a server answers that reads no shared memory."""
    return Forbidden(
        "this server uses no shared memory of clients; start it with --shared-memory to allow it"
    )


# -- Triton's shared memory extensions: clients register, list and unregister regions.
#
# The gateway keeps the list. A change is answered once every front process knows it. CUDA shared memory is
# not offered: its list is empty, and a registration is refused.

LONGEST_NAME = 1000


class Registration(Struct, frozen=True, kw_only=True):
    """What a client says about a region: the key of its POSIX shared memory, and which bytes of it."""

    key: str
    byte_size: Annotated[int, Meta(ge=1, le=2**40)]
    offset: Size = 0


class SharedMemoryControl:
    """Carries out what clients ask about regions."""

    def __init__(
        self,
        memory: SharedMemory,
        limits: Callable[[], Limits],
        announce: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`announce` tells other processes, if there are any, of the regions; it returns when they know."""
        self._memory, self._limits, self._announce = memory, limits, announce
        self._next = 0

    @property
    def entries(self) -> list[RegionEntry]:
        """The regions that are registered."""
        return [region.entry for region in self._memory.regions.values()]

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """List one region, or without a name all of them, as Triton describes them."""
        self._require_allowed()
        if name and name not in self._memory.regions:
            raise NotFound(f"no shared memory region '{name}' is registered")
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size}
            for one in self.entries
            if name in ("", one.name)
        ]

    async def register(self, name: str, given: Registration) -> None:
        """Open a region; raise a refusal that says what is wrong with it."""
        self._require_allowed()
        if not 1 <= len(name) <= LONGEST_NAME:
            raise BadRequest(f"a region's name has 1 to {LONGEST_NAME} characters; give another")
        self._check_room(name, given.byte_size)
        file = open_shared(given.key, given.offset + given.byte_size)
        self._next += 1
        entry = RegionEntry(
            number=self._next,
            name=name,
            key=given.key,
            offset=given.offset,
            byte_size=given.byte_size,
            path=str(path_of(file)),
            inode=os.fstat(file).st_ino,
        )
        self._memory.regions[name] = SharedRegion(entry, file)
        if self._announce is not None:
            await self._announce()

    async def unregister(self, name: str = "") -> None:
        """Forget one region, or without a name all of them; calls under way keep what they need."""
        self._require_allowed()
        for one in [name] if name else list(self._memory.regions):
            self._memory.regions.pop(one, None)  # Triton too is content if there is none
        if self._announce is not None:
            await self._announce()

    def refuse_cuda(self, step: str, name: str = "") -> None:
        """Answer a question about CUDA shared memory: nothing is registered, and nothing can be."""
        self._require_allowed()
        if step == "register":
            raise NotOffered("CUDA shared memory is not offered; register system shared memory instead")
        if step == "status" and name:
            raise NotFound(f"no CUDA shared memory region '{name}' is registered")

    def _check_room(self, name: str, byte_size: int) -> None:
        if name in self._memory.regions:
            raise BadRequest(f"shared memory region '{name}' is registered already; unregister it first")
        limits, entries = self._limits(), self.entries
        if len(entries) >= limits.shared_regions:
            raise BadRequest(
                f"{len(entries)} shared memory regions are registered, which is the limit; unregister one"
            )
        total = byte_size + sum(one.byte_size for one in entries)
        if total > limits.shared_bytes:
            raise BadRequest(
                f"all shared memory regions would have {total} bytes, {limits.shared_bytes} are the limit; "
                "unregister one, or register less"
            )

    def _require_allowed(self) -> None:
        if not self._memory.is_allowed:
            raise switched_off()


def read_registration(given: dict[str, Any]) -> Registration:
    """Read a registration; refuse numbers out of range."""
    try:
        return msgspec.convert(given, Registration)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the registration of a shared memory region is wrong: {error}") from None
