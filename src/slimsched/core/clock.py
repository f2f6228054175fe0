"""Simulated time: the timeline of future actions, and how a machine that reads no clock asks to be woken."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf
from typing import Any

from msgspec import Struct


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which takes a fifth of a run's time and finds no cycles in it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class WakeAt(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Command of a machine, which cannot look at a clock: give me a Wake at this time."""

    at_s: float


class Wake(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Event: the time asked for has come."""


Action = Callable[[Any], None]


class Timeline:
    """The simulator's clock: a heap of future actions; equal times keep the order they were scheduled in."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._count = 0

    def at(self, at_s: float, action: Action, argument: Any = None) -> None:
        """Schedule `action(argument)`."""
        self._count += 1
        heappush(self._heap, (at_s, self._count, action, argument))

    def next_s(self) -> float:
        """Return the time of the next action, or infinity if there is none."""
        return self._heap[0][0] if self._heap else inf

    def to_come(self) -> list[Any]:
        """List the arguments of all future actions, in order of time."""
        return [argument for *_, argument in sorted(self._heap, key=lambda one: one[:2])]

    def advance(self) -> None:
        """Advance the clock to the next action and run it."""
        self.now_s, _, action, argument = heappop(self._heap)
        action(argument)
