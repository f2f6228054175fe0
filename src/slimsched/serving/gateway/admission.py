"""Admission: refuses requests that cannot meet their deadline, by the work that is ahead of them.

    finish = now + ahead / capacity + own        capacity = Σ_i pace_i / slow_i

`ahead` is the work of all admitted requests that are served before this one (`WorkAhead`): what was sent
to servers counts as it was sent, what still waits counts at the cheapest plan that its terms allow
(`CheapestRest`). slow_i is how slow server i is by its profile, pace_i how fast it is compared with its
profile, as measured (`ServerSpeed`). `own` is the request's own time in an empty cluster.

A request is admitted if `finish` uses no more than a share `reach` of the time that it has. What the equation
leaves out (batches, hops, unequal queues) is measured: `reach` falls while admitted requests end too late or
close to it, and rises slowly while they do not. So the work that is admitted is done in time, and as much of
it as the servers can do, whatever is offered.

A request without a deadline is admitted if `ahead / capacity` is at most `queue_s`, where that is set.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence, Set
from functools import lru_cache
from itertools import groupby
from math import frexp, inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from slimsched.core.config import check
from slimsched.core.pareto import unbeaten
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster, Values
from slimsched.serving.domain.profile import ServerSpeed
from slimsched.serving.domain.request import (
    MOST_KEYS,
    NEVER_S,
    NO_PLAN,
    DropReason,
    Key,
    Request,
    count_examples,
    ids_of,
    split_by,
)
from slimsched.serving.gateway.observation import Observation


class Rest:
    """The segments of a plan that a request has still to run.

    `work_s` is their device time per example in full batches, on a server of mean speed.
    """

    def __init__(self, cluster: Cluster, keys: list[Key], work_s: float) -> None:
        self._cluster, self._keys, self.work_s = cluster, keys, work_s
        self.alone_s = lru_cache(maxsize=128)(self._alone_s)

    def _alone_s(self, examples: int) -> float:
        """Time of N examples as one batch, on the fastest server when it has nothing else to do."""
        size = min(examples, self._cluster.batch_limit)
        profiles = {id(one): one for one in self._cluster.profiles}.values()
        return min(sum(one.latency_s(key, size) for key in self._keys) for one in profiles)


class CheapestRest:
    """Finds the cheapest rest that a request's terms allow; keeps results, so that asking costs little."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.each_s = lru_cache(maxsize=MOST_KEYS)(self._each_s)
        narrowest_s = []
        for model in cluster.active or cluster.models:
            plans_s = [np.sum([self.each_s(key) for key in model.legs(p)], axis=0) for p in model.tree.plans]
            narrowest_s.append(min(plans_s, key=np.mean))
        mean_s: Values = np.mean(narrowest_s, axis=0)
        self.slowness: Values = mean_s / mean_s.mean()
        """How slow each server is beside the mean."""
        self._fronts = lru_cache(maxsize=None)(self._front)
        self._stated = lru_cache(maxsize=None)(self._stated_rest)

    def of(self, model: int, path: Path, plan: int, min_accuracy: float) -> Rest:
        """Return the cheapest rest after a path: of the stated plan, or of one with this accuracy."""
        if plan >= 0:
            return self._stated(model, len(path), plan)
        accuracies, rests = self._fronts(model, path)
        return rests[min(bisect_left(accuracies, min_accuracy), len(rests) - 1)]

    def of_request(self, request: Request) -> Rest:
        """Return the cheapest rest of a request."""
        return self.of(request.model, request.path, request.plan, request.min_accuracy)

    def _each_s(self, key: Key) -> Values:
        """Device time per example of a key in full batches, one value per server."""
        limit = self._cluster.batch_limit
        return np.array([profile.latency_s(key, limit) / limit for profile in self._cluster.profiles])

    def _rest(self, keys: list[Key]) -> Rest:
        work_s = sum([float((self.each_s(key) / self.slowness).mean()) for key in keys])
        return Rest(self._cluster, keys, work_s)

    def _stated_rest(self, model: int, done: int, plan: int) -> Rest:
        served = self._cluster.models[model]
        return self._rest(served.legs(served.tree.plans[plan])[done:])

    def _front(self, model: int, path: Path) -> tuple[list[float], list[Rest]]:
        """Return accuracies and rests of the plans that no cheaper one beats, by rising accuracy."""
        served = self._cluster.models[model]
        plans = [plan for plan in served.tree.plans if plan[: len(path)] == path]
        rests = [
            (self._rest(served.legs(plan)[len(path) :]), served.quality.accuracy(plan)) for plan in plans
        ]
        front = unbeaten(rests, lambda one: (one[0].work_s, one[1]))
        return [accuracy for _, accuracy in front], [rest for rest, _ in front]


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
    """Seconds of work that the requests in the system still cost, by rank, and the share of each in it.

    Examples that came as one request share one entry, until one of them counts differently.
    """

    def __init__(self) -> None:
        self._shares: dict[int, tuple[Rank, float, int]] = {}  # by first id: rank, work per example, examples
        self._sums: dict[Rank, tuple[int, float]] = {}  # how many examples, and their work
        self._longest = 1  # the most examples of one entry so far

    def set(self, request: Request, work_s: float) -> None:
        """Count a request with this much work per example, in place of what it counted before."""
        known = self._take(request)
        if known is None:
            self.add(request, work_s)
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

    def validated(self) -> Set[int]:
        """Return the ids of all that is counted, after a check that shares and sums agree."""
        examples: Counter[Rank] = Counter()
        for rank, _, count in self._shares.values():
            examples[rank] += count
        sums = {rank: count for rank, (count, _) in self._sums.items()}
        check(sums == examples, "{} examples by rank, their shares are of {}", sums, examples)
        return {first + n for first, (_, _, count) in self._shares.items() for n in range(count)}

    def add(self, request: Request, work_s: float) -> None:
        """Count a new request, with this much work per example."""
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


CLOSE = 0.25
"""An answer with less than this share of its time left counts as too close to the deadline."""

DEAR = 1.5
"""… unless its plan cost more than this many times the cheapest: then the router took the time it had."""

LATE = (DropReason.DEADLINE_PASSED, DropReason.DEADLINE_OUT_OF_REACH)

FIRST_REACH, LEAST_REACH, MOST_REACH = 0.85, 0.2, 1.0
FALL_PER_S, RISE_PER_S, MOST_FALL = 2.0, 0.04, 0.1
"""How fast `reach` moves while all work ends too late, and while none does: 2 % of it may."""


class Admission:
    """Knows the work in the system, and decides which requests can still be answered in time.

    Without `queue_s` it costs nothing until the first request with a deadline comes.
    """

    def __init__(
        self, cluster: Cluster, seen: Observation, speeds: Sequence[ServerSpeed], queue_s: float = 0.0
    ) -> None:
        """`queue_s` is how long requests without a deadline may have to wait; 0 means for any time."""
        self._seen, self._speeds, self._queue_s = seen, speeds, queue_s
        self._ahead = WorkAhead()
        self._is_used = queue_s > 0.0
        self._round_s = self._fell = 0.0  # since when the present reach is tried, and how far it fell since
        self.reach = FIRST_REACH
        """Share of its time that a request may be expected to take."""
        self.use(cluster)

    def use(self, cluster: Cluster) -> None:
        """Take the models and servers of this cluster from now on."""
        self._cluster, self._cheapest = cluster, CheapestRest(cluster)
        self._alive_ids: list[int] = []
        self._capacity = 0.0

    def admit(
        self, requests: Sequence[Request], now_s: float
    ) -> tuple[Sequence[Request], dict[DropReason, tuple[Request, ...]]]:
        """Split requests into those that are admitted, and the others by the reason why not.

        Requests of one call, which are neighbours that are alike, are admitted together or not at all.
        """
        if not self._is_used:
            self._is_used = any(request.deadline_s < NEVER_S for request in requests)
        if not self._is_used:
            return requests, {}
        taken: list[Request] = []
        refused: dict[DropReason, tuple[Request, ...]] = {}
        for call in [tuple(neighbours) for _, neighbours in groupby(requests, _terms_of)]:
            if (reason := self.refusal(call[0], count_examples(call), now_s)) is None:
                work_s = self._cheapest.of_request(call[0]).work_s
                for request in call:
                    self._ahead.add(request, work_s)
                taken += call
            else:
                refused[reason] = (*refused.get(reason, ()), *call)
        return taken, refused

    def refusal(self, request: Request, count: int, now_s: float) -> DropReason | None:
        """Say why a call of `count` such examples cannot be answered in time; None if it can."""
        deadline_s = request.deadline_s
        if deadline_s >= NEVER_S:
            return self.refusal_in_line(request.priority)
        if not (capacity := self._capacity_now()):
            return None
        slack_s = deadline_s - now_s
        own_s = self._cheapest.of_request(request).alone_s(count)
        if own_s > slack_s:
            return DropReason.DEADLINE_OUT_OF_REACH if slack_s > 0.0 else DropReason.DEADLINE_PASSED
        ahead_s = self._ahead.before(rank_of(request.priority, request.arrival_s, deadline_s))
        if ahead_s and ahead_s / capacity + own_s > self.reach * slack_s:
            return DropReason.OVERLOADED
        return None

    def refusal_in_line(self, priority: int) -> DropReason | None:
        """Say why a call without a deadline may not join the queue; None if it may."""
        is_full = 0.0 < self._queue_s < self.wait_s(priority)
        return DropReason.QUEUE_FULL if is_full else None

    def wait_s(self, priority: int) -> float:
        """Return the time that the work ahead of a call without a deadline takes; 0 while no server is up."""
        capacity = self._capacity_now()
        return self._ahead.before((-priority, inf)) / capacity if capacity else 0.0

    def loss(self, request: Request, now_s: float) -> DropReason | None:
        """Say why a request that waits is too late even if it ran now, alone and at its cheapest."""
        slack_s = request.deadline_s - now_s
        if slack_s <= 0.0:
            return DropReason.DEADLINE_PASSED
        if request.deadline_s < NEVER_S and self._cheapest.of_request(request).alone_s(1) > slack_s:
            return DropReason.DEADLINE_OUT_OF_REACH
        return None

    def wait(self, requests: Sequence[Request]) -> None:
        """Note that requests wait for their next segment."""
        if not self._is_used:
            return
        state, work_s, add = None, 0.0, self._ahead.set
        for request in requests:
            if state != (now := (request.path, request.plan, request.min_accuracy, request.model)):
                state, work_s = now, self._cheapest.of_request(request).work_s
            add(request, work_s)

    def send(self, requests: Sequence[Request], key: Key, server: int) -> None:
        """Note that requests were sent to a server."""
        if not self._is_used:
            return
        choices, cheapest, add = key.choices, self._cheapest, self._ahead.set
        sent_s = float(cheapest.each_s(key)[server] / cheapest.slowness[server])
        state, work_s, tree = None, 0.0, self._cluster.models[key.model].tree
        for request in requests:
            if state != (now := (request.path, request.plan, request.min_accuracy)):
                state, after = now, request.path + choices
                ends = tree.is_plan(after)
                work_s = sent_s + (0.0 if ends else cheapest.of(key.model, after, *now[1:]).work_s)
            add(request, work_s)

    def leave(self, requests: Sequence[Request], now_s: float, dropped: DropReason | None = None) -> None:
        """Note that requests were answered or dropped, and learn from it how far to trust predictions."""
        if not self._is_used:
            return
        fine_s = close_s = 0.0
        for request in requests:
            work_s, deadline_s = self._ahead.remove(request), request.deadline_s
            is_close = deadline_s - now_s < CLOSE * (deadline_s - request.arrival_s)
            if dropped in LATE or (is_close and not self._took_its_time(request, work_s)):
                close_s += work_s
            elif deadline_s < NEVER_S:
                fine_s += work_s
        if (dropped is None or dropped in LATE) and (capacity := self._capacity_now()):
            self._learn(fine_s / capacity, close_s / capacity, requests[-1].arrival_s, now_s)

    def _took_its_time(self, request: Request, work_s: float) -> bool:
        """Whether it could have been answered sooner, by a narrower plan or without a further one."""
        if request.trail is not None and request.trail.tried:
            return True
        cheapest = self._cheapest.of(request.model, (), request.plan, request.min_accuracy)
        return work_s > DEAR * request.count * cheapest.work_s

    def _learn(self, fine_s: float, close_s: float, arrival_s: float, now_s: float) -> None:
        """Move `reach` by how much work ended in time, and how much too late or close to it.

        A change shows only when the requests admitted since then leave, so it falls by a step until then.
        """
        if arrival_s >= self._round_s:
            self._round_s, self._fell = now_s, 0.0
        fall = min(FALL_PER_S * close_s, MOST_FALL - self._fell)
        self._fell += fall
        self.reach = max(LEAST_REACH, min(MOST_REACH, self.reach + RISE_PER_S * fine_s - fall))

    def ran(self) -> None:
        """Note that a batch has run: its server's pace is another one now."""
        self._capacity = 0.0

    def validate(self, known: Sequence[int]) -> None:
        """Check that exactly these examples count as work ahead, once there was a deadline."""
        counted = self._ahead.validated()
        check(not self._is_used or counted <= set(known), "work of {} is ahead, but {} wait", counted, known)

    def _capacity_now(self) -> float:
        """Seconds of work that all servers do per second, in time of a server of mean speed."""
        if self._alive_ids is not self._seen.alive_ids or not self._capacity:
            self._alive_ids = self._seen.alive_ids
            speeds, slowness = self._speeds, self._cheapest.slowness
            self._capacity = sum([speeds[i].pace / float(slowness[i]) for i in self._alive_ids])
        return self._capacity


_terms_of = attrgetter("arrival_s", "deadline_s", "model", "plan", "min_accuracy", "priority")


# -- The queue: what waits, by priority and age.
#
# The central FIFO: requests that wait for a route, in order of arrival, grouped by what they need next.


class QueuePlace(NamedTuple):
    """What requests need next. Those of one place can form a block: any next choice fits all paths."""

    segment: int  # the segment that comes next
    previous: int  # the choice of the segment before
    source: int  # where the input lies
    plan: int  # the plan that the sender stated, by number
    model: int
    way: int  # the kind of path: which choices may follow it


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


class _Group(Struct, eq=False):
    """All waiting requests of one place, in runs."""

    place: QueuePlace
    runs: "deque[_Run]" = field(default_factory=deque)
    count: int = 0


class _Run(Struct, eq=False):
    """Requests of one group that arrived in a row, with no others in between."""

    group: _Group
    requests: deque[Request]
    count: int

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
        self._groups: dict[QueuePlace, _Group] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def counts(self) -> list[tuple[QueuePlace, int]]:
        """Count the waiting examples of each place."""
        return [(place, group.count) for place, group in self._groups.items()]

    def push(self, place: QueuePlace, requests: Sequence[Request], *, first: bool = False) -> None:
        """Add requests of one place at the end; `first`: in front of all others, to run again."""
        count, group = count_examples(requests), self._groups.get(place)
        if group is None:
            group = self._groups[place] = _Group(place)
        group.count += count
        self._length += count
        if first:
            run = _Run(group, deque(requests), count)
            self._order.appendleft(run)
            group.runs.appendleft(run)
        elif group.runs and group.runs[-1] is self._order[-1]:
            group.runs[-1].requests.extend(requests)
            group.runs[-1].count += count
        else:
            run = _Run(group, deque(requests), count)
            self._order.append(run)
            group.runs.append(run)

    def head(self) -> tuple[QueuePlace, Request, int] | None:
        """Return the place served next, its first request, and how many examples of that place wait."""
        while self._order and not self._order[0].requests:
            self._order.popleft()
        if not self._order:
            return None
        run = self._order[0]
        return run.group.place, run.requests[0], run.group.count

    def take(self, place: QueuePlace, limit: int) -> tuple[Request, ...]:
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
        for group in [group for place, group in self._groups.items() if place.source == source]:
            lost.extend(self.take(group.place, group.count))
        return lost

    def take_out(self, ids: Set[int] | None) -> list[tuple[Request, int]]:
        """Take out the examples with these ids, or all; return them with the server that has their input."""
        out: list[tuple[Request, int]] = []
        for place, group in list(self._groups.items()):
            for run in group.runs:
                wanted, others = (run.requests, ()) if ids is None else split_by(run.requests, ids)
                out += [(request, place.source) for request in wanted]
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
        return any(place.source == source for place in self._groups)

    def ids(self) -> list[int]:
        """List the ids of all examples, after a check that groups and runs agree on how many there are."""
        for place, group in self._groups.items():
            counts = [run.count for run in group.runs]
            real = [count_examples(run.requests) if run.requests else 0 for run in group.runs]
            check(counts == real and sum(counts) == group.count, "{}: runs {}, real {}", place, counts, real)
        total = sum(group.count for group in self._groups.values())
        check(total == self._length, "{} in groups, {} in all", total, self._length)
        runs = [run for group in self._groups.values() for run in group.runs]
        return [number for run in runs for number in ids_of(run.requests)]
