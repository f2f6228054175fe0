"""The memory that this process may use: the machine's, or what its container is limited to."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container sees its own limit, by both versions of cgroups; "max" or a huge number means none."""


def memory_bytes(limit_files: Sequence[Path] = LIMIT_FILES) -> int:
    """Return how much memory there is."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in limit_files:
        with suppress(OSError, ValueError):
            known.append(int(file.read_text()))
    return min(known)
