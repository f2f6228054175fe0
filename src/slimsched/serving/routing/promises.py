"""Promises: an answer that waits for a wider plan's is sent before the deadline, whatever comes back."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from slimsched.core.clock import WakeAt
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.routing.commands import Command
from slimsched.serving.routing.forgetting import forget
from slimsched.serving.routing.sent_blocks import SentBlocks

SPARE, LEAST_SPARE_S = 0.04, 0.005
"""It is sent this share of its time before the deadline, and at least this long."""

WHY = "the deadline left no time for the wider plan"


MOST = 4096
"""How many may be remembered that are no longer needed."""


class Promises:
    """Knows when the answer must go that each request has which went on with a wider plan."""

    def __init__(self, sent: SentBlocks) -> None:
        self._sent = sent
        self._heap: list[tuple[float, int]] = []  # when, and which example
        self._most = MOST
        self._wake_s = inf  # for when a wake was asked

    def make(self, requests: Sequence[Request], now_s: float) -> list[Command]:
        """Note requests that go on; ask to be woken when the first of their answers must go."""
        for request in requests:
            if request.deadline_s < NEVER_S:
                spare_s = max(LEAST_SPARE_S, SPARE * (request.deadline_s - request.arrival_s))
                heappush(self._heap, (request.deadline_s - spare_s, request.id))
        if len(self._heap) > self._most:
            self._forget_answered()
        return self._wakes(now_s)

    def are_due(self, now_s: float) -> bool:
        """Whether some answer must go now, or the time has come to look for that."""
        return self._wake_s <= now_s

    def keep(self, now_s: float) -> tuple[list[Command], list[Request]]:
        """Return what must be done, and the requests to answer now, at the answers they have."""
        due: set[int] = set()
        while self._heap and self._heap[0][0] <= now_s:
            due.add(heappop(self._heap)[1])
        there = self._sent.settle(frozenset(due)) if due else []
        recalls = self._sent.recalls(frozenset([request.id for request in there])) if there else []
        self._wake_s = inf
        return [*recalls, *self._wakes(now_s)], [request.at_last_answer(WHY) for request in there]

    def forget(self, server: int) -> list[Command]:
        """Free what a server has kept of requests that it finished after they were answered."""
        return forget(server, self._sent.take_late(server))

    def _wakes(self, now_s: float) -> list[Command]:
        """Ask to be woken for the first, unless that was asked already."""
        if not self._heap or self._heap[0][0] >= self._wake_s:
            return []
        self._wake_s = max(now_s, self._heap[0][0])
        return [WakeAt(at_s=self._wake_s)]

    def _forget_answered(self) -> None:
        """Keep those whose requests are still at servers."""
        there = self._sent.ids()
        self._heap = [one for one in self._heap if one[1] in there]
        heapify(self._heap)
        self._most = 2 * len(self._heap) + MOST
