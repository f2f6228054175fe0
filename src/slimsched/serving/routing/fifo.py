"""The central FIFO: requests that wait for a route, in order of arrival, grouped by what they need."""

from collections import deque
from collections.abc import Sequence, Set

from slimsched.serving.domain.request import Request

Place = tuple[int, int, int, int, int, int]
"""(segment, previous choice, where the input lies, stated plan, model, kind of path).

Requests of one place can form a block: whatever choice comes next fits all of their paths.
"""


class _Run:
    """Requests of one place that arrived one after another, with none of another place in between."""

    __slots__ = ("place", "requests")

    def __init__(self, place: Place, requests: Sequence[Request]) -> None:
        self.place = place
        self.requests = deque(requests)


class Fifo:
    """Runs in order of arrival. The place of the first run is served first, from all its runs."""

    def __init__(self) -> None:
        self._order: deque[_Run] = deque()
        self._by_place: dict[Place, deque[_Run]] = {}
        self._counts: dict[Place, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, place: Place, requests: Sequence[Request]) -> None:
        """Add requests of one place at the end."""
        runs = self._by_place.get(place)
        if runs is None:
            runs = self._by_place[place] = deque()
            self._counts[place] = 0
        if runs and runs[-1] is self._order[-1]:
            runs[-1].requests.extend(requests)
        else:
            run = _Run(place, requests)
            self._order.append(run)
            runs.append(run)
        self._counts[place] += len(requests)
        self._length += len(requests)

    def push_front(self, place: Place, requests: Sequence[Request]) -> None:
        """Put requests that must run again in front of all others."""
        run = _Run(place, requests)
        self._order.appendleft(run)
        self._by_place.setdefault(place, deque()).appendleft(run)
        self._counts[place] = self._counts.get(place, 0) + len(requests)
        self._length += len(requests)

    def head(self) -> tuple[Place, Request, int] | None:
        """Return the place served next, its first request, and how many requests of that place wait."""
        while self._order and not self._order[0].requests:
            self._order.popleft()
        if not self._order:
            return None
        run = self._order[0]
        return run.place, run.requests[0], self._counts[run.place]

    def take(self, place: Place, limit: int) -> tuple[Request, ...]:
        """Take up to `limit` requests of a place, oldest first."""
        runs = self._by_place[place]
        taken: list[Request] = []
        room = limit
        while runs and room > 0:
            requests = runs[0].requests
            if len(requests) <= room:
                room -= len(requests)
                taken.extend(requests)
                requests.clear()
                runs.popleft()
            else:
                taken.extend([requests.popleft() for _ in range(room)])
                room = 0
        self._forget(place, len(taken))
        return tuple(taken)

    def take_from(self, source: int) -> list[Request]:
        """Take out every request whose input lies at this server."""
        lost: list[Request] = []
        for place in [place for place in self._by_place if place[2] == source]:
            lost.extend(self.take(place, self._counts[place]))
        return lost

    def take_out(self, ids: Set[int] | None) -> list[tuple[Request, int]]:
        """Take out the requests with these ids, or all; return each with the server that has its input."""
        out: list[tuple[Request, int]] = []
        for place in list(self._by_place):
            count = 0
            for run in self._by_place[place]:
                members = [request for request in run.requests if ids is None or request.id in ids]
                out += [(request, place[2]) for request in members]
                count += len(members)
                run.requests = deque(
                    request for request in run.requests if ids is not None and request.id not in ids
                )
            self._forget(place, count)
        return out

    def waits_for(self, source: int) -> bool:
        """Whether any request's input lies at this server."""
        return any(place[2] == source for place in self._by_place)

    def _forget(self, place: Place, count: int) -> None:
        self._length -= count
        self._counts[place] -= count
        if not self._counts[place]:
            del self._by_place[place], self._counts[place]
