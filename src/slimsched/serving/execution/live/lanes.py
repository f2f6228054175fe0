"""Threads that run work on a device beside the event loop, one per lane."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from slimsched.serving.domain.request import Batch
from slimsched.serving.execution.live.activation_store import ActivationStore
from slimsched.serving.execution.live.batch_run import run_batch, take_inputs
from slimsched.serving.execution.live.executor import Executor

Work = Callable[[], Any]
Then = Callable[[Any], None]


class Lanes:
    """Takes work from the event loop and returns results to it, each in one hand-over without futures."""

    def __init__(self, count: int, failed: Callable[[Exception], None]) -> None:
        self.under_way = 0
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._line: SimpleQueue[tuple[Work, Then]] = SimpleQueue()
        for number in range(count):
            Thread(target=self._work, name=f"lane-{number}", daemon=True).start()

    def run(self, work: Work, then: Then) -> None:
        """Run `work` in the next free lane, then pass its result to `then` in the event loop."""
        self.under_way += 1
        self._line.put((work, then))

    def run_batch(self, executor: Executor, store: ActivationStore, batch: Batch, then: Then) -> None:
        """Run this batch in the next free lane; its inputs are taken now."""
        self.run(partial(run_batch, executor, store, batch, take_inputs(store, batch)), then)

    def _work(self) -> None:
        while True:
            work, then = self._line.get()
            try:
                found = work()
            except Exception as error:
                then, found = self._failed, error
            self._tell(then, found)

    def _tell(self, then: Then, found: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it this server
            self._loop.call_soon_threadsafe(self._done, then, found)

    def _done(self, then: Then, found: Any) -> None:
        self.under_way -= 1
        then(found)
