"""The lag of an event loop: how long what arrives waits before the loop comes to it.

A loop with too much to do reads requests late. They have waited in the sockets meanwhile, and nothing says
since when. A timer shows it: it is as late as everything else.
"""

import asyncio
from time import monotonic

PERIOD_S = 0.02


class LoopLag:
    """Measures the running loop fifty times per second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = 0.0
        """How late the loop was the last time."""
        self._expect()

    def _expect(self) -> None:
        self._due_s = monotonic() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._look)

    def _look(self) -> None:
        self.seconds = max(0.0, monotonic() - self._due_s)
        self._expect()

    def stop(self) -> None:
        """Measure no more."""
        self._timer.cancel()
