"""The private folder of a gateway's sockets; it is removed at the end, or by the next start."""

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from slimsched.serving.execution.live.shared_folder import clear

PREFIX = "slim-"
LOCK = "lock"


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
        self._lock = new.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK)  # nobody sees it unlocked

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    def remove(self) -> None:
        """Remove the folder and the shared memory that dead servers left behind."""
        _remove(self.path)
        self._lock.close()


def _remove_stale() -> None:
    """Remove what gateways of this user left that were killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), lock.open("a") as file:  # another user's, or in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.parent)


def _remove(folder: Path) -> None:
    clear(folder.name)
    shutil.rmtree(folder, ignore_errors=True)
