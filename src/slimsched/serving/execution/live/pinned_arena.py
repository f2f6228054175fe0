"""The input arena as a CUDA server sees it: pinned, so that the GPU copies inputs without the host's help."""

import ctypes
from pathlib import Path

import torch

from slimsched.serving.execution.live.input_arena import SLAB_BYTES, ArenaReader


class PinnedArena(ArenaReader):
    """Pins each slab when something in it is first read. What cannot be pinned is read all the same."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen: set[int] = set()
        if self.memory is not None:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes that the gateway wrote, in pinned memory."""
        view, slab = super().view(offset, size), offset // SLAB_BYTES
        if slab not in self._seen:
            self._seen.add(slab)
            torch.cuda.cudart().cudaHostRegister(self._address + slab * SLAB_BYTES, SLAB_BYTES, 0)  # type: ignore[no-untyped-call]
        return view
