"""SIGTERM and Ctrl-C: the first signal asks to finish, the second to end at once."""

import asyncio
import signal
from collections.abc import Coroutine


class StopSignals:
    """Listens to the signals of this process."""

    def __init__(self) -> None:
        self._stop, self._at_once = asyncio.Event(), asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self._hear)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._stop.wait()

    async def unless_stopped(self, work: Coroutine[None, None, None]) -> bool:
        """Do the work, or break it off at the first signal; return whether it was done."""
        return await _unless(self._stop, work)

    async def unless_at_once(self, work: Coroutine[None, None, None], within_s: float) -> bool:
        """Do the work, or break it off at the second signal or after a time; return whether it was done."""
        return await _unless(self._at_once, work, within_s)

    def _hear(self) -> None:
        (self._at_once if self._stop.is_set() else self._stop).set()


async def _unless(
    told: asyncio.Event, work: Coroutine[None, None, None], within_s: float | None = None
) -> bool:
    task, waiting = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    await asyncio.wait([task, waiting], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    await task
    return True
