"""The regions of shared memory that this process knows, and what a call borrows while it runs."""

import logging
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from slimsched.serving.api.ledger import Account, Ledger
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import BadRequest, Forbidden, Unavailable
from slimsched.serving.api.shared_region import Place, RegionEntry, RegionPart, SharedRegion
from slimsched.serving.live.memory import InputArena

log = logging.getLogger("slim.memory")


class SharedMemory:
    """Finds regions by name. In a front, the regions are those that the gateway names."""

    def __init__(self, ledger: Ledger, *, is_allowed: bool = False) -> None:
        self.is_allowed = is_allowed
        self.regions: dict[str, SharedRegion] = {}
        self.account: Account = ledger.open("shared memory")

    def find(self, place: Place, what: str) -> RegionPart:
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


class Lender(Protocol):
    """What has memory for the inputs of calls: a desk."""

    memory: SharedMemory
    ledger: Ledger
    limits: Limits

    @property
    def arena(self) -> InputArena | None:
        """Memory for large inputs that the servers can read."""
        ...


class Loan:
    """The memory into which the inputs of one call are copied from regions; it is given back at the end."""

    __slots__ = ("_desk", "_held_bytes", "_rooms")

    def __init__(self, desk: Lender) -> None:
        self._desk = desk
        self._rooms: list[memoryview] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        """Lend for the time of a call."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give everything back."""
        if not self._held_bytes:
            return
        self._desk.ledger.hold(self._desk.memory.account, -self._held_bytes)
        for room in self._rooms:
            assert self._desk.arena is not None
            self._desk.arena.give_back(room)

    def find(self, place: Place, what: str) -> RegionPart:
        """Return the part of a region that a request names for a tensor; refuse one that is not there."""
        return self._desk.memory.find(place, what)

    def read(self, part: RegionPart) -> memoryview:
        """Return a copy of a part, which its client cannot change; in the arena where there is room."""
        desk, size = self._desk, part.byte_size
        account = desk.memory.account
        if 2 * (account.held_bytes + size) > desk.limits.held_bytes:
            raise Unavailable("too many bytes of requests are under way; try again")
        desk.ledger.hold(account, size)
        self._held_bytes += size
        copy = desk.arena.take(size) if desk.arena is not None else None
        if copy is None:
            copy = memoryview(bytearray(size))
        else:
            self._rooms.append(copy)
        part.region.read(part.offset, copy)
        return copy


def switched_off() -> Forbidden:
    """What a server answers that reads no shared memory."""
    return Forbidden(
        "this server uses no shared memory of clients; start it with --shared-memory to allow it"
    )
