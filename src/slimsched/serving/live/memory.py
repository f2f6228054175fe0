"""What processes of a machine share: memory for inputs, folders of shared memory and of sockets. No torch.

Whoever receives inputs writes them once, into the arena, and servers on this machine read them there. The
arena is a file without a name, which other processes of the same user open through its owner. So it is
not bound by the size of /dev/shm, which is 64 MB in most containers, and nothing stays when processes die.
It grows in slabs, up to a limit, and only as far as it is used. The gateway and each front process have a
part of it. Inputs that find no room travel in messages instead: a full arena costs speed and nothing else.
"""

import ctypes
import fcntl
import mmap
import os
import re
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slimsched.core.config import new_private_file, open_file_inside, open_private_folder, remove_files

# -- The memory that this process may use: the machine's, or what its container is limited to.

LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container sees its own limit, by both versions of cgroups; "max" or a huge number means none."""


def memory_bytes(limit_files: Sequence[Path] = LIMIT_FILES) -> int:
    """Return how much memory there is."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in limit_files:
        with suppress(OSError, ValueError):
            known.append(int(file.read_text()))
    return min(known)


# -- The folders of shared memory, and their cleaning. It needs no torch, so the gateway starts without it.

FOLDERS = [path for path in (Path("/dev/shm"), Path(tempfile.gettempdir())) if path.is_dir()]
"""Where tensors may lie: in memory, and on disk where that memory is full (64 MB in most containers)."""


def clear(prefix: str) -> None:
    """Remove shared memory that dead processes left behind: files of this user."""
    for folder in FOLDERS:
        remove_files(folder, f"{prefix}-")


# -- The private folder of a gateway's sockets; it is removed at the end, or by the next start.
#
# The temporary directory is everybody's. So what looks like such a folder is only believed if its name is one
# that `mkdtemp` gives, and if folder and lock belong to this user alone. See `core/config.py`.

PREFIX = "slim-"
LOCK = "lock"
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")
"""What `mkdtemp` makes of the prefix."""


class SocketFolder:
    """A folder that only this user can open, and whose lock says that its gateway lives.

    The operating system releases the lock when the process ends in any way. So a folder whose lock is free
    was left by a gateway that was killed, and whoever comes next may remove it. Its name also begins the
    names of the gateway's shared memory.
    """

    def __init__(self) -> None:
        _remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        new = self.path / f"{LOCK}.new"
        self._lock: int | None = new_private_file(new)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK)  # nobody sees it unlocked

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    def remove(self) -> None:
        """Remove the folder, and the shared memory that dead servers left behind."""
        if self._lock is not None:
            _remove(self.path)
            os.close(self._lock)
            self._lock = None


def _remove_stale() -> None:
    """Remove what gateways of this user left that were killed."""
    root = Path(tempfile.gettempdir())
    with suppress(OSError):
        for name in filter(_NAME.fullmatch, os.listdir(root)):
            with suppress(OSError):  # another user's, or in use
                _remove_if_stale(root / name)


def _remove_if_stale(path: Path) -> None:
    """Remove a folder of this user if nobody holds its lock; raises OSError if somebody does."""
    folder = open_private_folder(path)
    try:
        lock = open_file_inside(folder, LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _remove(folder: Path) -> None:
    clear(folder.name)
    shutil.rmtree(folder, ignore_errors=True)


SLAB_BYTES = 32 * 2**20
ALIGN_BYTES = 256
LEAST_BYTES = 16 * 2**10
"""Smaller inputs are cheaper in a message."""

LIMIT_BYTES = 4 * 2**30


class ArenaReader:
    """A server's side: the memory that others write, read where it is."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._size = os.fstat(file.fileno()).st_size
            self.memory = mmap.mmap(file.fileno(), self._size) if self._size else None

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of any part."""
        if self.memory is None or not 0 <= offset <= self._size - size:
            raise ValueError(f"the arena has no {size} bytes at {offset}")
        return memoryview(self.memory)[offset : offset + size]


class InputArena(ArenaReader):
    """One writer's part: takes and gives back room. A piece never crosses the border of a slab.

    A server may still read a piece that was given back, but only for a request that nobody waits for.
    """

    def __init__(self, path: Path, *, part: int = 0, parts: int = 1) -> None:
        """Open one of several equal parts of the memory that `open_arena` made."""
        super().__init__(path)
        self._file = os.open(path, os.O_RDWR)
        self.path = path_of(self._file)
        room = self._size // parts
        self._limit_bytes, self._slab_bytes, self._room = LIMIT_BYTES, SLAB_BYTES, room
        self._begin, self._end = part * room, part * room
        self._free: list[tuple[int, int]] = []  # (start, end) in order
        self._taken: dict[int, int] = {}  # end by start
        if self.memory is not None:
            self._view = memoryview(self.memory)
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def limit_bytes(self) -> int:
        """How much may be taken at most."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        """Set the limit; as long as nothing was taken, slabs shrink so that two of them are within it."""
        self._limit_bytes = limit_bytes
        if self._end == self._begin:
            self._slab_bytes = min(SLAB_BYTES, 1 << max(0, (limit_bytes // 2).bit_length() - 1))

    @property
    def in_use_bytes(self) -> int:
        """Bytes taken at the moment."""
        return sum(end - start for start, end in self._taken.items())

    def take(self, size: int) -> memoryview | None:
        """Return room for this many bytes; None if there is none, or if a message is cheaper."""
        if not LEAST_BYTES <= size <= self._slab_bytes:
            return None
        wanted = -(-size // ALIGN_BYTES) * ALIGN_BYTES
        for place, (start, end) in enumerate(self._free):
            if end - start >= wanted:
                if end - start == wanted:
                    del self._free[place]
                else:
                    self._free[place] = (start + wanted, end)
                self._taken[start] = start + wanted
                return self._view[start : start + size]
        return self.take(size) if self._grow() else None

    def put(self, raws: list[memoryview]) -> list[memoryview] | None:
        """Copy inputs into one piece; None if there is no room. Give the first one back later."""
        size = sum(-(-len(raw) // ALIGN_BYTES) * ALIGN_BYTES for raw in raws)
        room = self.take(size)
        if room is None:
            return None
        views, at = [], 0
        for raw in raws:
            room[at : at + len(raw)] = raw
            views.append(room[at : at + len(raw)])
            at += -(-len(raw) // ALIGN_BYTES) * ALIGN_BYTES
        return views

    def give_back(self, view: memoryview) -> None:
        """Free the piece that begins where this view does."""
        start = self.offset(view)
        end = self._taken.pop(start) if start is not None else 0
        if start is None:
            return
        place = bisect_left(self._free, (start, end))
        if place < len(self._free) and self._free[place][0] == end and end % self._slab_bytes:
            end = self._free.pop(place)[1]
        if place and self._free[place - 1][1] == start and start % self._slab_bytes:
            place -= 1
            start = self._free.pop(place)[0]
        self._free.insert(place, (start, end))

    def offset(self, view: memoryview) -> int | None:
        """Where these bytes lie in the arena; None if they lie elsewhere."""
        if view.readonly or self._end == self._begin or not len(view):
            return None
        start = ctypes.addressof(ctypes.c_char.from_buffer(view)) - self._address
        return start if self._begin <= start < self._end else None

    def close(self) -> None:
        """Give the file up; the memory goes with the last process that uses it."""
        with suppress(OSError):
            os.close(self._file)

    def _grow(self) -> bool:
        """Add a slab; False at the limit or if the system has no memory left."""
        slab = self._slab_bytes
        if self._end - self._begin + slab > min(self._limit_bytes, self._room):
            return False
        try:
            os.posix_fallocate(self._file, self._end, slab)
        except OSError:
            self._room = self._end - self._begin
            return False
        self._free.append((self._end, self._end + slab))
        self._end += slab
        return True


def open_arena(parts: int = 1) -> InputArena | None:
    """Make the memory and open its first part; None where the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    file = os.memfd_create("slim-inputs")
    try:
        room = min(LIMIT_BYTES, memory_bytes() // 2)  # all parts together: at most half of the machine's
        os.ftruncate(file, parts * (room // parts // SLAB_BYTES * SLAB_BYTES))
        return InputArena(path_of(file), parts=parts)
    finally:
        os.close(file)


def path_of(file: int) -> Path:
    """Where other processes find an open file that has no name."""
    return Path(f"/proc/{os.getpid()}/fd/{file}")
