"""A region of GPU memory that a client registered: the server copies from it and into it.

The client allocates the memory and hands out a handle (CUDA IPC). While a process of the server has it open,
the memory stays, even if the client frees it or ends; it is given back when the region is unregistered.
"""

import base64
import binascii
from typing import Annotated

from msgspec import Meta, Struct

from slimsched.serving.api.cuda_driver import HANDLE_BYTES, CudaDriver, CudaError, CudaMapping
from slimsched.serving.api.refusal import BadRequest, RefusalError, Unavailable


class RawHandle(Struct, frozen=True):
    """A CUDA IPC handle in JSON."""

    b64: Annotated[str, Meta(max_length=1000)]


class CudaRegistration(Struct, frozen=True, kw_only=True):
    """What a client says about a region of CUDA memory."""

    raw_handle: RawHandle
    device_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    byte_size: Annotated[int, Meta(ge=1, le=2**40)]

    def handle(self) -> bytes:
        """Return the handle, without the line breaks of Triton's C++ client; refuse what cannot be one."""
        try:
            handle = base64.b64decode("".join(self.raw_handle.b64.split()), validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("raw_handle is not base64; send the handle of cudaIpcGetMemHandle") from None
        if len(handle) != HANDLE_BYTES:
            raise BadRequest(
                f"raw_handle has {len(handle)} bytes, a CUDA IPC handle has {HANDLE_BYTES}; "
                "send the handle of cudaIpcGetMemHandle"
            )
        return handle


class CudaEntry(Struct, frozen=True, kw_only=True, tag=True):
    """A registered region; `number` tells apart two that had the same name, one after the other."""

    number: int
    name: str
    device_id: int
    byte_size: int
    handle: bytes


class CudaRegion:
    """The open memory of a region. It is closed when nobody needs it: registry, call or another region."""

    __slots__ = ("_driver", "_mapping", "entry")

    def __init__(self, entry: CudaEntry, driver: CudaDriver, mapping: CudaMapping) -> None:
        self.entry, self._driver, self._mapping = entry, driver, mapping

    def read(self, offset: int, into: memoryview) -> None:
        """Copy bytes of the region; refuse if that fails."""
        try:
            self._mapping.read(offset, into)
        except CudaError as error:
            raise self._refusal(error, "read") from None

    def reserve(self, offset: int, size: int) -> None:
        """Make sure that the region is there to be written; refuse if not."""
        try:
            self._mapping.check()
        except CudaError as error:
            raise self._refusal(error, "written") from None

    def write(self, offset: int, raw: memoryview) -> None:
        """Copy bytes into the region; refuse if that fails."""
        try:
            self._mapping.write(offset, raw)
        except CudaError as error:
            raise self._refusal(error, "written") from None

    def _refusal(self, error: CudaError, what: str) -> RefusalError:
        if self._driver.trouble:
            return broken(self._driver)
        return BadRequest(
            f"the CUDA memory of region '{self.entry.name}' cannot be {what}: {error}; "
            "keep it allocated while it is registered, or register it again"
        )


def prepare_device(driver: CudaDriver, device: int) -> None:
    """Get ready to open memory of a device, which takes a while; refuse if that fails."""
    try:
        driver.use(device)
    except CudaError as error:
        raise Unavailable(
            f"CUDA device {device} cannot be used: {error}; "
            "try again later, or register system shared memory instead"
        ) from None


def open_cuda(entry: CudaEntry, driver: CudaDriver) -> CudaRegion:
    """Open the memory of a region; refuse what is no handle, and less memory than was named."""
    name = entry.name
    prepare_device(driver, entry.device_id)
    try:
        mapping = driver.open(entry.device_id, entry.handle)
    except CudaError as error:
        if driver.trouble:
            raise broken(driver) from None
        raise BadRequest(
            f"the CUDA memory of region '{name}' cannot be opened: {error}; allocate it with cudaMalloc on "
            f"device {entry.device_id} of this machine, keep it, and send its handle"
        ) from None
    if (size := mapping.byte_size) < entry.byte_size:
        del mapping  # else the error holds it open
        raise BadRequest(
            f"the CUDA memory of region '{name}' has {size} bytes, but byte_size is "
            f"{entry.byte_size}; give less, or allocate more"
        )
    return CudaRegion(entry, driver, mapping)


def broken(driver: CudaDriver) -> Unavailable:
    """What a client gets after CUDA broke in this process."""
    return Unavailable(
        f"CUDA shared memory works no more in this process: {driver.trouble}; "
        "use system shared memory, or restart the server"
    )
