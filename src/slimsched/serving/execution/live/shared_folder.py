"""The folders of shared memory, and their cleaning. It needs no torch, so the gateway starts without it."""

import tempfile
from pathlib import Path

from slimsched.core.config import remove_files

FOLDERS = [path for path in (Path("/dev/shm"), Path(tempfile.gettempdir())) if path.is_dir()]
"""Where tensors may lie: in memory, and on disk where that memory is full (64 MB in most containers)."""


def clear(prefix: str) -> None:
    """Remove shared memory that dead processes left behind: files of this user."""
    for folder in FOLDERS:
        remove_files(folder, f"{prefix}-")
