"""The central FIFO: requests that wait for a route, in order of arrival, grouped by what they need."""

from collections import deque
from collections.abc import Sequence, Set
from operator import attrgetter

from slimsched.serving.domain.request import NO_PLAN, Request, count_examples, split_by

Place = tuple[int, int, int, int, int, int]
"""(segment, previous choice, where the input lies, stated plan, model, kind of path).

Requests of one place can form a block: whatever choice comes next fits all of their paths.
"""

Kind = tuple[int, int, int]
"""What kind of request it is: (priority, stated plan, model)."""

PLAIN: Kind = (0, NO_PLAN, 0)
"""The only kind until a sender asks for something special."""

kind_of = attrgetter("priority", "plan", "model")
"""Return the kind of a request."""


def by_kind(requests: Sequence[Request]) -> list[tuple[Kind, Sequence[Request]]]:
    """Group requests by their kind, in the order in which kinds come."""
    kinds: list[Kind] = list(map(kind_of, requests))
    if kinds.count(kinds[0]) == len(kinds):
        return [(kinds[0], requests)]
    pairs = list(zip(requests, kinds, strict=True))
    return [(kind, [one for one, own in pairs if own == kind]) for kind in dict.fromkeys(kinds)]


class _Group:
    """All waiting requests of one place, in runs."""

    __slots__ = ("count", "place", "runs")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.runs: deque[_Run] = deque()
        self.count = 0


class _Run:
    """Requests of one group that arrived in a row, with no others in between."""

    __slots__ = ("count", "group", "requests")

    def __init__(self, group: _Group, requests: Sequence[Request], count: int) -> None:
        self.group, self.count = group, count
        self.requests = deque(requests)

    def take(self, limit: int) -> list[Request]:
        """Take the first examples, fewer than there are; split a request if necessary."""
        self.count -= limit
        taken: list[Request] = []
        while limit:
            request = self.requests.popleft()
            if request.count > limit:
                self.requests.appendleft(request.part(limit, request.count))
                request = request.part(0, limit)
            taken.append(request)
            limit -= request.count
        return taken


class Fifo:
    """Runs in order of arrival. The group of the first run is served first, from all its runs."""

    def __init__(self) -> None:
        self._order: deque[_Run] = deque()  # may begin with runs that are empty by now
        self._groups: dict[Place, _Group] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def counts(self) -> list[tuple[Place, int]]:
        """Count the waiting examples of each place."""
        return [(place, group.count) for place, group in self._groups.items()]

    def push(self, place: Place, requests: Sequence[Request]) -> None:
        """Add requests of one place at the end."""
        count = count_examples(requests)
        group = self._group(place, count)
        if group.runs and group.runs[-1] is self._order[-1]:
            group.runs[-1].requests.extend(requests)
            group.runs[-1].count += count
        else:
            run = _Run(group, requests, count)
            self._order.append(run)
            group.runs.append(run)

    def push_front(self, place: Place, requests: Sequence[Request]) -> None:
        """Put requests that must run again in front of all others."""
        count = count_examples(requests)
        group = self._group(place, count)
        run = _Run(group, requests, count)
        self._order.appendleft(run)
        group.runs.appendleft(run)

    def head(self) -> tuple[Place, Request, int] | None:
        """Return the place served next, its first request, and how many examples of that place wait."""
        while self._order and not self._order[0].requests:
            self._order.popleft()
        if not self._order:
            return None
        run = self._order[0]
        return run.group.place, run.requests[0], run.group.count

    def take(self, place: Place, limit: int) -> tuple[Request, ...]:
        """Take up to `limit` examples of a place, oldest first."""
        group = self._groups[place]
        runs, room = group.runs, limit
        taken: list[Request] = []
        while runs and room > 0:
            run = runs[0]
            if run.count <= room:
                room -= run.count
                taken.extend(run.requests)
                run.requests.clear()
                runs.popleft()
            else:
                taken.extend(run.take(room))
                room = 0
        self._length -= limit - room
        group.count -= limit - room
        if not group.count:
            del self._groups[place]
        return tuple(taken)

    def take_from(self, source: int) -> list[Request]:
        """Take out every request whose input lies at this server."""
        lost: list[Request] = []
        for group in [group for place, group in self._groups.items() if place[2] == source]:
            lost.extend(self.take(group.place, group.count))
        return lost

    def take_out(self, ids: Set[int] | None) -> list[tuple[Request, int]]:
        """Take out the examples with these ids, or all; return them with the server that has their input."""
        out: list[tuple[Request, int]] = []
        for place, group in list(self._groups.items()):
            for run in group.runs:
                wanted, others = (run.requests, ()) if ids is None else split_by(run.requests, ids)
                out += [(request, place[2]) for request in wanted]
                run.requests, run.count = deque(others), count_examples(others)
            group.runs = deque(run for run in group.runs if run.requests)
            left = sum(run.count for run in group.runs)
            self._length -= group.count - left
            group.count = left
            if not left:
                del self._groups[place]
        return out

    def waits_for(self, source: int) -> bool:
        """Whether any request's input lies at this server."""
        return any(place[2] == source for place in self._groups)

    def _group(self, place: Place, more: int) -> _Group:
        """Return the group of a place, which gets this many examples more."""
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = _Group(place)
        group.count += more
        self._length += more
        return group
