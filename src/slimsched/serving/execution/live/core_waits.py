"""Core waits: says when a process is silent or late because the machine is full, and when that is over."""

import logging
import os
from collections.abc import Callable, Collection, Mapping

FULL_S = 5.0
"""A silent process that has waited this long for a core is worth a line in the log."""


class CoreWaits:
    """Says once in the log that a process waits for a core, and once that it no longer does."""

    def __init__(self, log: logging.Logger, name: Callable[[int], str]) -> None:
        self._log, self._name = log, name
        self._waiting: dict[int, float] = {}  # seconds by process

    @property
    def waiting(self) -> Collection[int]:
        """Those that wait now."""
        return self._waiting.keys()

    def update(self, waits_s: Mapping[int, float]) -> bool:
        """Note how long processes have got no core; return whether others wait than before."""
        before, now = self._waiting, {one: wait_s for one, wait_s in waits_s.items() if wait_s >= FULL_S}
        self._waiting = now
        for one in now.keys() - before.keys():
            text = "%s has waited %.0f s for a core: this machine is full (%s); it is not ended"
            self._log.warning(text, self._name(one), now[one], load_words())
        for one in before.keys() - now.keys():
            self._log.info("%s waits for a core no longer, after %.0f s", self._name(one), before[one])
        return now.keys() != before.keys()


def load_words() -> str:
    """Say how many threads want how many cores."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
