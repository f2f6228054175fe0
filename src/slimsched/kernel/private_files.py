"""Files and folders of this user alone, in places where everybody may put something, such as /tmp.

Anyone can leave anything there under any name: a pipe that holds up whoever opens it, a link to a file that
is not theirs, a folder whose name is a pattern. So nothing here follows links, waits, or takes a name from
the disk for a pattern, and what was opened is asked whose it is before it is used.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_OPEN = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class NotPrivateError(PermissionError):
    """What has this name is not a file or folder of this user alone."""


def open_private_folder(path: Path) -> int:
    """Open a folder that this user owns and that nobody else may enter."""
    return _checked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN), path, stat.S_ISDIR)


def open_private_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that this user owns and that nobody else may open."""
    return _checked(os.open(path, flags | _OPEN), path, stat.S_ISREG)


def open_file_inside(folder: int, name: str, flags: int) -> int:
    """Open a regular file of this user in a private folder, which keeps others out whatever its mode is."""
    return _checked(os.open(name, flags | _OPEN, dir_fd=folder), name, stat.S_ISREG, others=0)


def new_private_file(path: Path, flags: int = os.O_RDWR) -> int:
    """Make and open a file that only this user may open; raises FileExistsError if the name is taken."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)


def own_folder(path: Path) -> Path:
    """Make a folder for this user, or take one that is there if it is theirs; raises NotPrivateError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} is not a folder of this user; name another one")
    return path


def remove_files(folder: Path, beginning: str) -> None:
    """Remove the regular files of this user whose names begin so."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(beginning):
                with suppress(OSError):
                    _remove_file(entry)


def _remove_file(entry: "os.DirEntry[str]") -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        os.unlink(entry.path)


def _checked(
    file: int, path: Path | str, is_right_kind: Callable[[int], bool], *, others: int = _OTHERS
) -> int:
    """Return an open file of this kind that is this user's and closed to others; else close it and raise."""
    status = os.fstat(file)
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & others
    if is_ours and is_right_kind(status.st_mode):
        return file
    os.close(file)
    raise NotPrivateError(f"{path} is not this user's alone; nothing in it is touched")
