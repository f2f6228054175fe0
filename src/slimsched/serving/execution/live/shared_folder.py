"""The folder of shared memory, and its cleaning. It needs no torch, so the gateway starts without it."""

import contextlib
from pathlib import Path

FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")


def clear(prefix: str) -> None:
    """Remove shared memory that dead processes left behind."""
    for path in FOLDER.glob(f"{prefix}-*"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
