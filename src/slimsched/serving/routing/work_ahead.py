"""Work ahead: how much the requests in the system still cost, by the order in which they are served."""

from collections.abc import Sequence
from math import frexp, inf

from slimsched.serving.domain.request import NEVER_S, Request

Rank = tuple[int, float]
"""(negative priority, deadline rounded up): what is served first has the lower rank."""

GRAIN = 1 / 16
"""Deadlines are rounded up to about this share of the time that a request has."""


def rank_of(priority: int, arrival_s: float, deadline_s: float) -> Rank:
    """Return the rank of a request; it is the same for requests that arrive about together."""
    if deadline_s >= NEVER_S:
        return -priority, inf
    grain_s = 2.0 ** (frexp(max(1e-6, deadline_s - arrival_s) * GRAIN)[1] - 1)
    return -priority, grain_s * -(-deadline_s // grain_s)


class WorkAhead:
    """Seconds of work by rank, and the share of each request in it.

    Examples that came as one request share one entry, until one of them counts differently.
    """

    def __init__(self) -> None:
        self._shares: dict[int, tuple[Rank, float, int]] = {}  # by first id: rank, work per example, examples
        self._sums: dict[Rank, tuple[int, float]] = {}  # how many examples, and their work
        self._longest = 1  # the most examples of one entry so far

    def add(self, requests: Sequence[Request], work_s: float) -> None:
        """Count new requests, with this much work per example."""
        for request in requests:
            self._add(request, work_s)

    def set(self, request: Request, work_s: float) -> None:
        """Count a request with this much work per example, in place of what it counted before."""
        known = self._take(request)
        if known is None:
            self._add(request, work_s)
            return
        rank, before_s, count = known
        examples, total_s = self._sums[rank]
        self._sums[rank] = examples, total_s + count * work_s - count * before_s
        self._shares[request.id] = rank, work_s, count

    def remove(self, request: Request) -> float:
        """Count a request no longer; return what it counted."""
        known = self._take(request)
        if known is None:
            return 0.0
        rank, work_s, count = known
        examples, total_s = self._sums[rank]
        if examples > count:
            self._sums[rank] = examples - count, total_s - count * work_s
        else:
            del self._sums[rank]  # and with it what rounding left over
        return count * work_s

    def before(self, rank: Rank) -> float:
        """Return the work of all requests of this rank and lower ones."""
        return sum([total_s for other, (_, total_s) in self._sums.items() if other <= rank])

    def _add(self, request: Request, work_s: float) -> None:
        rank, count = rank_of(request.priority, request.arrival_s, request.deadline_s), request.count
        examples, total_s = self._sums.get(rank, (0, 0.0))
        self._sums[rank] = examples + count, total_s + count * work_s
        self._shares[request.id] = rank, work_s, count
        self._longest = max(self._longest, count)

    def _take(self, request: Request) -> tuple[Rank, float, int] | None:
        """Take out the entry of a request; if it is part of a larger one, leave the rest of that."""
        shares, first, count = self._shares, request.id, request.count
        known = shares.pop(first, None)
        while known is None and first > request.id - self._longest:
            first -= 1
            known = shares.pop(first, None)
        if known is None or (known[2] == count and first == request.id):
            return known
        rank, work_s, examples = known
        start, end = request.id - first, request.id - first + count
        if start:
            shares[first] = rank, work_s, min(start, examples)
        if start >= examples:  # another request's: this one is not known
            return None
        if end < examples:
            shares[first + end] = rank, work_s, examples - end
        return rank, work_s, count
