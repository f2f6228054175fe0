"""Work ahead: how much the requests in the system still cost, by the order in which they are served."""

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
    """Seconds of work by rank, and the share of each request in it."""

    def __init__(self) -> None:
        self._shares: dict[int, tuple[Rank, float]] = {}  # by request
        self._sums: dict[Rank, tuple[int, float]] = {}  # how many requests, and their work

    def set(self, request: Request, work_s: float) -> None:
        """Count a request with this much work, in place of what it counted before."""
        known = self._shares.get(request.id)
        if known is None:
            rank = rank_of(request.priority, request.arrival_s, request.deadline_s)
            count, total_s = self._sums.get(rank, (0, 0.0))
            self._sums[rank] = count + 1, total_s + work_s
        else:
            rank, before_s = known
            count, total_s = self._sums[rank]
            self._sums[rank] = count, total_s + work_s - before_s
        self._shares[request.id] = rank, work_s

    def remove(self, request: int) -> float:
        """Count a request no longer; return what it counted."""
        known = self._shares.pop(request, None)
        if known is None:
            return 0.0
        rank, work_s = known
        count, total_s = self._sums[rank]
        if count > 1:
            self._sums[rank] = count - 1, total_s - work_s
        else:
            del self._sums[rank]  # and with it what rounding left over
        return work_s

    def before(self, rank: Rank) -> float:
        """Return the work of all requests of this rank and lower ones."""
        return sum([total_s for other, (_, total_s) in self._sums.items() if other <= rank])
