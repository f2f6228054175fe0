"""The private folder of a gateway's sockets; it is removed at the end, or by the next start.

The temporary directory is everybody's. So what looks like such a folder is only believed if its name is one
that `mkdtemp` gives, and if folder and lock belong to this user alone. See `core/config.py`.
"""

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from slimsched.core.config import new_private_file, open_file_inside, open_private_folder
from slimsched.serving.execution.live.shared_folder import clear

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
