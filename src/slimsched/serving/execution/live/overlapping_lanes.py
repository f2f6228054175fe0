"""Keeps several batches running on a device that works in parallel with the host.

The event loop's own thread starts batches, asks the device whether they are done, and finishes them. A thread
of its own for that would have to be woken for each batch, and would wait for Python's lock.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from time import sleep

from slimsched.serving.domain.request import Batch
from slimsched.serving.execution.live.activation_store import ActivationStore
from slimsched.serving.execution.live.batch_run import BatchRun, BatchUnderWay, take_inputs
from slimsched.serving.execution.live.executor import Executor
from slimsched.serving.execution.live.lanes import Lanes, Then
from slimsched.serving.execution.live.wakefulness import has_many_cores

LOOK_S = 0.00002
"""With few cores the event loop rests for this long between two looks at the device."""


class OverlappingLanes(Lanes):
    """Runs up to `count` overlapping batches; what cannot overlap, such as loading, uses a thread."""

    def __init__(self, count: int, failed: Callable[[Exception], None]) -> None:
        super().__init__(1, failed)
        self._count = count
        self._waiting: deque[tuple[Callable[[], BatchUnderWay], Then]] = deque()
        self._running: list[tuple[BatchUnderWay, Then]] = []
        self._is_looking = False
        self._rests = not has_many_cores()

    def run_batch(self, executor: Executor, store: ActivationStore, batch: Batch, then: Then) -> None:
        """Start this batch as soon as fewer than `count` are running; its inputs are taken now."""
        self.under_way += 1
        begin = partial(BatchUnderWay, executor, store, batch, take_inputs(store, batch))
        self._waiting.append((begin, then))
        self._begin()

    def _begin(self) -> None:
        """Start batches while there is room."""
        while self._waiting and len(self._running) < self._count:
            begin, then = self._waiting.popleft()
            batch = begin()
            if batch.is_launched:
                self._running.append((batch, then))
            else:
                self.under_way -= 1
                self.run(batch.finish, then)
        if self._running and not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Finish the batches that the device has done, and look again in the next round of the loop."""
        done = [one for one in self._running if one[0].ready()]
        for one in done:
            self._running.remove(one)
            self._finish(*one)
        self._is_looking = False
        self._begin()
        if self._rests and not done:
            sleep(LOOK_S)

    def _finish(self, batch: BatchUnderWay, then: Then) -> None:
        found: BatchRun | Exception
        try:
            found = batch.finish()
        except Exception as error:
            then, found = self._failed, error
        self._done(then, found)
