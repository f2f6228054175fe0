"""Triton's shared memory extensions: clients register, list and unregister regions of either kind.

The gateway keeps the list. A change is answered once every front process knows it.
"""

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from slimsched.serving.api.cuda_driver import NoCudaError
from slimsched.serving.api.cuda_region import (
    CudaEntry,
    CudaRegion,
    CudaRegistration,
    broken,
    open_cuda,
    prepare_device,
)
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import BadRequest, NotFound, NotOffered
from slimsched.serving.api.shared_memory import Entry, SharedMemory, switched_off
from slimsched.serving.api.shared_region import RegionEntry, SharedRegion, Size, open_shared
from slimsched.serving.execution.live.input_arena import path_of

T = TypeVar("T")

LONGEST_NAME = 1000
WORDS: dict[type[Entry], str] = {RegionEntry: "system shared memory", CudaEntry: "CUDA shared memory"}
"""What each kind of region is called."""


class Registration(Struct, frozen=True, kw_only=True):
    """What a client says about a region: the key of its POSIX shared memory, and which bytes of it."""

    key: str
    byte_size: Annotated[int, Meta(ge=1, le=2**40)]
    offset: Size = 0


async def _nobody_else() -> None:
    """Tell nobody: this process reads all requests itself."""


class SharedMemoryControl:
    """Carries out what clients ask about regions. A name stands for one region, of one of the two kinds."""

    def __init__(self, memory: SharedMemory, limits: Callable[[], Limits]) -> None:
        self._memory, self._limits = memory, limits
        self._next = 0
        self.announce: Callable[[], Awaitable[None]] = _nobody_else
        """Tells other processes which regions there are, and returns when they know."""

    @property
    def entries(self) -> list[Entry]:
        """The regions that are registered."""
        return [region.entry for region in self._memory.regions.values()]

    def status(self, name: str = "", kind: type[Entry] = RegionEntry) -> list[dict[str, Any]]:
        """List one region of a kind, or without a name all of them."""
        self._require_allowed()
        self._drop_broken()
        region = self._memory.regions.get(name)
        if name and region is None:
            raise NotFound(f"no shared memory region '{name}' is registered")
        if region is not None and not isinstance(region.entry, kind):
            raise NotFound(f"region '{name}' is {WORDS[type(region.entry)]}; ask for its status there")
        return [_described(one) for one in self.entries if isinstance(one, kind) and name in ("", one.name)]

    async def register(self, name: str, given: Registration | CudaRegistration) -> None:
        """Open a region; raise a refusal that says what is wrong with it."""
        self._require_allowed()
        if not 1 <= len(name) <= LONGEST_NAME:
            raise BadRequest(f"a region's name has 1 to {LONGEST_NAME} characters; give another")
        self._drop_broken()
        self._check_room(name, given.byte_size)
        if isinstance(given, CudaRegistration):
            handle = await asyncio.to_thread(self._prepare, given)
            self._check_room(name, given.byte_size)  # others may have registered meanwhile
            region: SharedRegion | CudaRegion = self._open_cuda(name, given, handle)
        else:
            region = self._open_system(name, given)
        self._memory.regions[name] = region
        await self.announce()

    async def unregister(self, name: str = "", kind: type[Entry] = RegionEntry) -> None:
        """Forget one region of a kind, or without a name all of them; calls under way keep what they need."""
        self._require_allowed()
        regions = self._memory.regions
        for one in [one for one in self.entries if isinstance(one, kind) and name in ("", one.name)]:
            del regions[one.name]  # Triton too is content if there is none
        await self.announce()

    def _open_system(self, name: str, given: Registration) -> SharedRegion:
        file = open_shared(given.key, given.offset + given.byte_size)
        entry = RegionEntry(
            number=self._number(),
            name=name,
            key=given.key,
            offset=given.offset,
            byte_size=given.byte_size,
            path=str(path_of(file)),
            inode=os.fstat(file).st_ino,
        )
        return SharedRegion(entry, file)

    def _prepare(self, given: CudaRegistration) -> bytes:
        """Check a registration and make CUDA ready, which takes a while; return the handle."""
        cuda = self._memory.cuda
        try:
            devices = cuda.load()
        except NoCudaError as error:
            raise no_cuda(str(error)) from None
        if cuda.trouble:
            raise broken(cuda)
        if given.device_id >= devices:
            raise BadRequest(
                f"device_id {given.device_id} is not there: the server has {devices} CUDA device(s), "
                f"numbered from 0 to {devices - 1}; give the server's number of the device"
            )
        handle = given.handle()
        prepare_device(cuda, given.device_id)
        return handle

    def _open_cuda(self, name: str, given: CudaRegistration, handle: bytes) -> CudaRegion:
        entry = CudaEntry(
            number=self._number(),
            name=name,
            device_id=given.device_id,
            byte_size=given.byte_size,
            handle=handle,
        )
        return open_cuda(entry, self._memory.cuda)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _drop_broken(self) -> None:
        """Forget CUDA regions that this process cannot use any more."""
        if self._memory.cuda.trouble:
            for one in self.entries:
                if isinstance(one, CudaEntry):
                    del self._memory.regions[one.name]

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


def _described(one: Entry) -> dict[str, Any]:
    """Describe a region as Triton does."""
    if isinstance(one, CudaEntry):
        return {"name": one.name, "device_id": one.device_id, "byte_size": one.byte_size}
    return {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size}


def read_registration(given: dict[str, Any]) -> Registration:
    """Read a registration; refuse numbers out of range."""
    return _read(given, Registration)


def read_cuda_registration(handle: bytes, device_id: int, byte_size: int) -> CudaRegistration:
    """Read a registration of CUDA memory; refuse numbers out of range."""
    raw = {"b64": base64.b64encode(handle).decode()}
    return _read({"raw_handle": raw, "device_id": device_id, "byte_size": byte_size}, CudaRegistration)


def _read(given: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the registration of a shared memory region is wrong: {error}") from None


def no_cuda(why: str) -> NotOffered:
    """What a client gets that wants to register CUDA memory where there is none."""
    return NotOffered(f"CUDA shared memory is not offered: {why}; register system shared memory instead")
