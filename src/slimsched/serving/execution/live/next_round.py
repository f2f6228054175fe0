"""Work that is done once in the event loop's next round, however often it is asked for in this one."""

import asyncio
from collections.abc import Callable


class NextRound:
    """Collects what comes in one round, so that it goes out together."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._is_due = work, False

    def expect(self) -> None:
        """Ask for the work."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        self._work()
