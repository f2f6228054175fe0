"""Gives freed memory back to the system, so that unloading shows in a process's resident memory."""

import ctypes


def trim_memory() -> None:
    """Ask the C library to return what it keeps for later; does nothing where it cannot."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return  # not the GNU C library
