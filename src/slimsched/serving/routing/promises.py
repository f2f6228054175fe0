"""Promises: an answer that waits for a wider plan's is sent before the deadline, whatever comes back."""

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from slimsched.kernel.wake import WakeAt
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.routing.commands import Command, RecallRequests
from slimsched.serving.routing.sent_blocks import SentBlocks

SPARE, LEAST_SPARE_S = 0.04, 0.005
"""It is sent this share of its time before the deadline, and at least this long."""

WHY = "the deadline left no time for the wider plan"


class Promises:
    """Knows when the answer must go that each request has which went on with a wider plan."""

    def __init__(self, sent: SentBlocks) -> None:
        self._sent = sent
        self._heap: list[tuple[float, int]] = []  # when, and which example

    def make(self, requests: Iterable[Request], now_s: float) -> list[Command]:
        """Note requests that go on; ask to be woken when the first of their answers must go."""
        first_s = inf
        for request in requests:
            if request.deadline_s < NEVER_S:
                spare_s = max(LEAST_SPARE_S, SPARE * (request.deadline_s - request.arrival_s))
                heappush(self._heap, (request.deadline_s - spare_s, request.id))
                first_s = min(first_s, request.deadline_s - spare_s)
        return [WakeAt(at_s=max(first_s, now_s))] if first_s < inf else []

    def are_due(self, now_s: float) -> bool:
        """Whether some answer must go now."""
        return bool(self._heap) and self._heap[0][0] <= now_s

    def keep(self, now_s: float) -> tuple[list[RecallRequests], list[Request]]:
        """Return what servers need not run any more, and the requests to answer, at the answers they have."""
        due: set[int] = set()
        while self.are_due(now_s):
            due.add(heappop(self._heap)[1])
        there = self._sent.settle(frozenset(due))
        recalls = self._sent.recalls(frozenset([request.id for request in there])) if there else []
        return recalls, [request.at_last_answer(WHY) for request in there]
