"""Simulated fronts: calls of several examples reach the gateway as they do over HTTP.

A client sends a call to one of the fronts, which reads it. While the gateway has not taken the last message
of a front, calls gather there; then they go together, in bundles by the same rule as live. Each bundle is one
request to the gateway. A call is answered when all its examples are and the answer has reached its client.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, cycle
from math import inf

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.domain.bundling import fits, hold_s
from slimsched.serving.domain.front_cost import FrontCost
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.routing.events import Event
from slimsched.serving.routing.gateway_cost import requests_in


class Calls(Struct, frozen=True, kw_only=True):
    """What became of each call: when it was sent, and when its client had the answer (NaN: dropped)."""

    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]


class _Front:
    """Calls that one front has read, and when it may pass them on."""

    __slots__ = ("free_s", "read")

    def __init__(self) -> None:
        self.read: deque[tuple[float, int]] = deque()  # when, and which call; in order
        self.free_s = 0.0  # when the gateway's word came that it has taken the last message; inf: not yet

    def leaves_s(self) -> float:
        """Return when the next message leaves."""
        return max(self.free_s, self.read[0][0]) if self.read else inf


class SimulatedFronts:
    """A stream of requests that calls make, and the way of the answers back to their clients."""

    is_impatient = False
    cancel_after_s = inf

    def __init__(
        self,
        cost: FrontCost,
        sent_s: Sequence[float],
        *,
        examples: int = 1,
        deadline_s: float = NEVER_S,
        seed: int = 0,
    ) -> None:
        """Each call has this many `examples`; it is sent to one of the fronts at random."""
        self._cost, self._sent_s = cost, list(sent_s)
        self._examples, self._deadline_s = examples, deadline_s
        self._fronts = [_Front() for _ in range(cost.fronts)]
        chosen = np.random.default_rng(seed).integers(cost.fronts, size=len(self._sent_s)).tolist()
        inward_s = cycle(cost.inward_s)
        read = sorted((at_s + next(inward_s), call) for call, at_s in enumerate(self._sent_s))
        for read_s, call in read:
            self._fronts[chosen[call]].read.append((read_s, call))
        self._next_id = count(0, examples)
        self._firsts: list[
            int
        ] = []  # the first example of each call that was passed on, and which call it is
        self._calls: list[int] = []
        self._left = [examples] * len(self._sent_s)
        self._done_s = np.full(len(self._sent_s), np.nan)
        self._untaken: list[_Front] = []
        self._outward_s = cycle(cost.outward_s)
        self._counted = 0  # requests that the gateway has handled
        self.backlog_s: Callable[[], float] = lambda: 0.0
        """How long every server has work for, at least."""

    def __len__(self) -> int:
        return self._examples * len(self._sent_s)

    def after(self, at_s: float) -> int:
        """Return how many examples are sent at this time or later."""
        return self._examples * sum(sent_s >= at_s for sent_s in self._sent_s)

    def next_s(self) -> float:
        """Return when the next message of a front reaches the gateway; infinity if none is expected."""
        return min([front.leaves_s() for front in self._fronts]) + self._cost.message_s

    def take_one(self) -> tuple[Request, ...]:
        """Take the next message."""
        return self.take_until(self.next_s())

    def take_until(self, until_s: float) -> tuple[Request, ...]:
        """Take the messages that have reached the gateway by this time."""
        requests: list[Request] = []
        for front in self._fronts:
            leaves_s = front.leaves_s()
            if leaves_s + self._cost.message_s <= until_s:
                requests += self._bundled(front, leaves_s)
                front.free_s = inf
                self._untaken.append(front)
        return tuple(requests)

    def impatient(self, requests: tuple[Request, ...]) -> list[Request]:
        """Clients of fronts wait for their answers."""
        return []

    def taken(self, now_s: float) -> None:
        """The gateway says that it has taken the messages; its word is under way for `message_s`."""
        if not self._untaken:
            return
        wait_s = hold_s(self.backlog_s()) if self._cost.gathers else 0.0
        for front in self._untaken:
            front.free_s = now_s + self._cost.message_s + wait_s
        self._untaken.clear()

    def pause_s(self, event: Event) -> float:
        """Return how long the gateway stops after an event."""
        before, self._counted = self._counted, self._counted + requests_in(event)
        every, pause_s = self._cost.pauses.every, self._cost.pauses.pause_s
        due = range(before // every, self._counted // every) if pause_s else ()
        return sum(pause_s[one % len(pause_s)] for one in due)

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """The gateway answers these examples; a call is done with the last of its own."""
        for request in requests:
            is_late = now_s > request.deadline_s
            at, end = request.id, request.id + request.count
            while at < end:
                place = bisect_right(self._firsts, at) - 1
                call, after = self._calls[place], min(end, self._firsts[place] + self._examples)
                self._left[call] -= after - at
                if is_late:
                    self._left[call] = -1  # refused
                if not self._left[call]:
                    self._done_s[call] = now_s + next(self._outward_s)
                at = after

    def calls(self) -> Calls:
        """Return what became of each call."""
        return Calls(sent_s=np.array(self._sent_s), done_s=self._done_s)

    def _bundled(self, front: _Front, leaves_s: float) -> list[Request]:
        """Put the calls that a front has read by now into bundles."""
        bundles: list[Request] = []
        first_s = examples = first_id = 0.0
        while front.read and front.read[0][0] <= leaves_s:
            read_s, call = front.read.popleft()
            number = next(self._next_id)
            self._firsts.append(number)
            self._calls.append(call)
            if bundles and fits(first_s, int(examples), read_s, self._examples, self._cost.longest_s):
                bundles.pop()
                examples += self._examples
            else:
                first_s, first_id, examples = read_s, number, self._examples
            deadline_s = first_s + self._deadline_s
            bundles.append(
                Request(id=int(first_id), arrival_s=first_s, deadline_s=deadline_s, count=int(examples))
            )
        return bundles
