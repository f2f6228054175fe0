"""Keeps an event loop awake for a short time while it waits for something that comes soon.

A process that sleeps takes 0.05 to 0.2 ms to wake up, and a request passes through several of them. On a
machine with many cores it is cheaper to look again and again for some milliseconds.
"""

import asyncio
import os
from time import monotonic

AWAKE_S = 0.003
"""What takes longer than this does not notice a wake-up."""

MANY_CORES = 8
"""With fewer cores than this, whoever stays awake takes a core from others."""


def has_many_cores() -> bool:
    """Whether this process may use enough cores to keep one busy with waiting."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores >= MANY_CORES


class Wakefulness:
    """Lets the running loop look for events without sleeping, on a machine with many cores."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._may = has_many_cores()
        self._is_awake, self._until_s = False, 0.0

    def expect(self) -> None:
        """Something comes soon: stay awake for it."""
        if not self._may:
            return
        self._until_s = monotonic() + AWAKE_S
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._look)

    def rest(self) -> None:
        """Nothing is expected any more."""
        self._until_s = 0.0

    def _look(self) -> None:
        self._is_awake = monotonic() < self._until_s
        if self._is_awake:
            self._loop.call_soon(self._look)
