"""Triton's shared memory extensions: clients register, list and unregister regions.

The gateway keeps the list. A change is answered once every front process knows it. CUDA shared memory is not
offered: its list is empty, and a registration is refused.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import BadRequest, NotFound, NotOffered
from slimsched.serving.api.shared_memory import SharedMemory, switched_off
from slimsched.serving.api.shared_region import RegionEntry, SharedRegion, Size, open_shared
from slimsched.serving.live.memory import path_of

LONGEST_NAME = 1000


class Registration(Struct, frozen=True, kw_only=True):
    """What a client says about a region: the key of its POSIX shared memory, and which bytes of it."""

    key: str
    byte_size: Annotated[int, Meta(ge=1, le=2**40)]
    offset: Size = 0


async def _nobody_else() -> None:
    """Tell nobody: this process reads all requests itself."""


class SharedMemoryControl:
    """Carries out what clients ask about regions."""

    def __init__(self, memory: SharedMemory, limits: Callable[[], Limits]) -> None:
        self._memory, self._limits = memory, limits
        self._next = 0
        self.announce: Callable[[], Awaitable[None]] = _nobody_else
        """Tells other processes which regions there are, and returns when they know."""

    @property
    def entries(self) -> list[RegionEntry]:
        """The regions that are registered."""
        return [region.entry for region in self._memory.regions.values()]

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """List one region, or without a name all of them."""
        self._require_allowed()
        if name and name not in self._memory.regions:
            raise NotFound(f"no shared memory region '{name}' is registered")
        return [_described(one) for one in self.entries if name in ("", one.name)]

    async def register(self, name: str, given: Registration) -> None:
        """Open a region; raise a refusal that says what is wrong with it."""
        self._require_allowed()
        if not 1 <= len(name) <= LONGEST_NAME:
            raise BadRequest(f"a region's name has 1 to {LONGEST_NAME} characters; give another")
        self._check_room(name, given.byte_size)
        self._memory.regions[name] = self._open(name, given)
        await self.announce()

    async def unregister(self, name: str = "") -> None:
        """Forget one region, or without a name all of them; calls under way keep what they need."""
        self._require_allowed()
        for one in [name] if name else list(self._memory.regions):
            self._memory.regions.pop(one, None)  # Triton too is content if there is none
        await self.announce()

    def _open(self, name: str, given: Registration) -> SharedRegion:
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
        return SharedRegion(entry, file)

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


def _described(one: RegionEntry) -> dict[str, Any]:
    """Describe a region as Triton does."""
    return {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size}


def read_registration(given: dict[str, Any]) -> Registration:
    """Read a registration; refuse numbers out of range."""
    try:
        return msgspec.convert(given, Registration)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the registration of a shared memory region is wrong: {error}") from None
