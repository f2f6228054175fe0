"""A client that keeps tensors on a GPU: allocates memory, hands out its handle, writes and reads it.

As a program, it allocates so many bytes and prints the handle. It frees them at the line `free`, and ends
with its standard input, so that others can see what becomes of memory whose owner is gone.
"""

import base64
import ctypes
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p


class CudaClient:
    """A context on the first device, and memory in it."""

    def __init__(self, library: str = "") -> None:
        self._cuda = ctypes.CDLL(library or os.environ.get("SLIM_LIBCUDA", "libcuda.so.1"))
        number, self._context = c_int(), c_void_p()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", byref(number), 0)
        self._do("cuDevicePrimaryCtxRetain", byref(self._context), number)
        self._do("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """Return the address of new memory."""
        address = c_uint64()
        self._do("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def handle(self, address: int) -> bytes:
        """Return what another process needs to open this memory."""
        raw = (ctypes.c_ubyte * 64)()
        self._do("cuIpcGetMemHandle", byref(raw), c_uint64(address))
        return bytes(raw)

    def write(self, address: int, data: bytes) -> None:
        """Copy to the GPU."""
        self._do("cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))
        self._do("cuCtxSynchronize")

    def read(self, address: int, size: int) -> bytes:
        """Copy from the GPU."""
        data = ctypes.create_string_buffer(size)
        self._do("cuMemcpyDtoH_v2", data, c_uint64(address), c_size_t(size))
        return data.raw

    def free(self, address: int) -> None:
        """Give memory back."""
        self._do("cuMemFree_v2", c_uint64(address))

    def free_bytes(self) -> int:
        """Return how much memory of the GPU is free."""
        free, total = c_size_t(), c_size_t()
        self._do("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def _do(self, name: str, *given: object) -> None:
        code = getattr(self._cuda, name)(*given)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")


def main() -> None:
    """Hold memory until the input ends."""
    client = CudaClient()
    address = client.allocate(int(sys.argv[1]))
    print(base64.b64encode(client.handle(address)).decode(), flush=True)
    for line in sys.stdin:
        if line.strip() == "free":
            client.free(address)
            print("freed", flush=True)


if __name__ == "__main__":
    main()
