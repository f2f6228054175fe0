"""Threads that work on a device beside the event loop, as many at once as the device has lanes."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

Work = Callable[[], Any]
Then = Callable[[Any], None]


class Lanes:
    """Work goes in from the event loop, its result comes back to it; one hand-over each way, no futures."""

    def __init__(self, count: int, failed: Callable[[Exception], None]) -> None:
        self.under_way = 0
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._line: SimpleQueue[tuple[Work, Then]] = SimpleQueue()
        for number in range(count):
            Thread(target=self._work, name=f"lane-{number}", daemon=True).start()

    def run(self, work: Work, then: Then) -> None:
        """Do this in the next lane that is free, then tell the event loop what came of it."""
        self.under_way += 1
        self._line.put((work, then))

    def _work(self) -> None:
        while True:
            work, then = self._line.get()
            try:
                found = work()
            except Exception as error:
                then, found = self._failed, error
            try:
                self._loop.call_soon_threadsafe(self._done, then, found)
            except RuntimeError:
                return  # the loop has ended, and with it this server

    def _done(self, then: Then, found: Any) -> None:
        self.under_way -= 1
        then(found)
