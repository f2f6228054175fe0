"""Observers that look when the event loop has sent what was decided, so that nothing waits for them."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from slimsched.kernel.observer import Observer


class Onlookers:
    """Keeps entries of the log, in their order, and shows them to observers two rounds of the loop later.

    Blocks leave in the round in which they were decided, and answers in the next one.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._entries: list[tuple[float, str, Struct, Sequence[Struct]]] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Keep one entry."""
        if not self._entries:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self.show)
        self._entries.append((now_s, machine, event, commands))

    def show(self) -> None:
        """Show all entries that were kept."""
        entries, self._entries = self._entries, []
        for entry in entries:
            for observer in self._observers:
                observer.observe(*entry)
