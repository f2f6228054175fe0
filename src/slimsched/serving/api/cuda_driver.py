"""The CUDA driver, as far as it takes to copy from and into memory that another process shares.

It is called through ctypes and not through torch, which front processes do not load. Nothing is loaded before
a client registers CUDA memory.

A context on a device is made once per process and kept. Some errors break a context for good, and CUDA offers
no way back but a new process. The driver then says so in `trouble`, and copies nothing any more.

`SLIM_LIBCUDA` names another library with the same functions; the tests have one for machines without a GPU.
"""

import ctypes
import logging
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from slimsched.kernel.errors import SlimError

log = logging.getLogger("slim.memory")

SETTING = "SLIM_LIBCUDA"
HANDLE_BYTES = 64
LAZY_PEER_ACCESS = 1
"""The only flag that memory can be opened with: a GPU may read it through another one, if it must."""


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("raw", c_uint64 * (HANDLE_BYTES // 8)),)


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


class CudaError(SlimError):
    """A function of the driver failed; the message says which one and why."""


class NoCudaError(CudaError):
    """There is no CUDA driver here, or no device."""


class CudaMapping:
    """Memory of another process, open until nobody needs it."""

    def __init__(self, driver: "CudaDriver", device: int, address: int) -> None:
        self._driver, self._device, self._address = driver, device, address
        self.byte_size = driver.byte_size(device, address)

    def __del__(self) -> None:
        """Close it with the last reference."""
        self._driver.close(self._device, self._address)

    def check(self) -> None:
        """Raise if the driver does not know this memory any more."""
        self._driver.byte_size(self._device, self._address)

    def read(self, offset: int, into: memoryview) -> None:
        """Copy bytes from the device."""
        self._driver.copy(self._device, self._address + offset, into, is_read=True)

    def write(self, offset: int, raw: memoryview) -> None:
        """Copy bytes to the device."""
        self._driver.copy(self._device, self._address + offset, raw, is_read=False)


class CudaDriver:
    """Opens and copies memory of other processes, with one context for each device."""

    def __init__(self) -> None:
        self.trouble = ""
        """Why this process cannot use CUDA any more; empty while it can."""
        self._library: ctypes.CDLL | None = None
        self._devices = 0
        self._contexts: dict[int, c_void_p] = {}
        self._mappings: WeakValueDictionary[tuple[int, bytes], CudaMapping] = WeakValueDictionary()
        self._lock = Lock()

    def load(self) -> int:
        """Load the driver, which takes a moment the first time; return the number of its devices."""
        with self._lock:
            if self._library is None:
                library, count = _load(), c_int()
                try:
                    _do(library, "cuInit", 0)
                    _do(library, "cuDeviceGetCount", byref(count))
                except CudaError as error:
                    raise NoCudaError(str(error)) from None
                if not count.value:
                    raise NoCudaError("there is no CUDA device")
                self._library, self._devices = library, count.value
            return self._devices

    def has(self, device: int) -> bool:
        """Whether memory of a device can be opened without delay."""
        return device in self._contexts

    def use(self, device: int) -> None:
        """Make a context on a device, which takes a good part of a second the first time."""
        self.load()
        with self._lock:
            if device not in self._contexts:
                number, context = c_int(), c_void_p()
                self._do("cuDeviceGet", byref(number), device)
                self._do("cuDevicePrimaryCtxRetain", byref(context), number)
                self._contexts[device] = context

    def open(self, device: int, handle: bytes) -> CudaMapping:
        """Open memory by its handle; memory that is open in this process already is not opened again."""
        mapping = self._mappings.get((device, handle))
        if mapping is None:
            self._enter(device)
            address, packed = c_uint64(), _Handle.from_buffer_copy(handle)
            self._do("cuIpcOpenMemHandle_v2", byref(address), packed, LAZY_PEER_ACCESS)
            mapping = self._mappings[device, handle] = CudaMapping(self, device, address.value)
        return mapping

    def close(self, device: int, address: int) -> None:
        """Close memory; what cannot be closed is gone already."""
        try:
            self._enter(device)
            self._do("cuIpcCloseMemHandle", address)
        except CudaError:
            pass

    def byte_size(self, device: int, address: int) -> int:
        """Return how many bytes there are from an address on."""
        self._enter(device)
        base, size = c_uint64(), c_size_t()
        self._do("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        return base.value + size.value - address

    def copy(self, device: int, address: int, host: memoryview, *, is_read: bool) -> None:
        """Copy from an address to the host's memory, or the other way."""
        if not len(host):
            return
        self._enter(device)
        at = np.frombuffer(host, np.uint8).ctypes.data
        try:
            if is_read:
                self._do("cuMemcpyDtoH_v2", at, address, len(host))
            else:
                self._do("cuMemcpyHtoD_v2", address, at, len(host))
                self._do("cuCtxSynchronize")  # only now other processes are sure to see it
        except CudaError:
            self._note_trouble()
            raise

    def _note_trouble(self) -> None:
        """Find out whether only a copy failed, or the context is broken and nothing works any more."""
        try:
            self._do("cuCtxSynchronize")
        except CudaError as error:
            self.trouble = str(error)
            log.error("CUDA works no more in this process, which refuses CUDA shared memory now: %s", error)

    def _enter(self, device: int) -> None:
        """Let this thread work in the context of a device."""
        if self.trouble:
            raise CudaError(self.trouble)
        self._do("cuCtxSetCurrent", self._contexts[device])

    def _do(self, name: str, *given: object) -> None:
        assert self._library is not None
        _do(self._library, name, *given)


def may_work() -> bool:
    """Whether this machine seems to have an NVIDIA GPU; nothing is loaded to find out."""
    if SETTING in os.environ:
        return Path(os.environ[SETTING]).exists()
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _load() -> ctypes.CDLL:
    name = os.environ.get(SETTING, "libcuda.so.1")
    try:
        library = ctypes.CDLL(name)
        for function, types in SIGNATURES.items():
            getattr(library, function).argtypes = types
    except (OSError, AttributeError) as error:
        raise NoCudaError(f"the CUDA driver cannot be loaded: {error}") from None
    return library


def _do(library: ctypes.CDLL, name: str, *given: object) -> None:
    """Call a function of the driver; raise if it fails."""
    code = getattr(library, name)(*given)
    if code:
        text = c_char_p()
        library.cuGetErrorString(code, byref(text))
        why = text.value.decode(errors="replace") if text.value else "unknown error"
        raise CudaError(f"{name.removesuffix('_v2')} says '{why}' ({code})")
