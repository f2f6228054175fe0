"""Admission: refuses requests that cannot meet their deadline, by the work that is ahead of them.

    finish = now + ahead / capacity + own        capacity = Σ_i pace_i / slow_i

`ahead` is the work of all admitted requests that are served before this one (`WorkAhead`): what was sent
to servers counts as it was sent, what still waits counts at the cheapest plan that its terms allow
(`CheapestRest`). slow_i is how slow server i is by its profile, pace_i how fast it is compared with its
profile, as measured (`ServerPace`). `own` is the request's own time in an empty cluster.

A request is admitted if `finish` uses no more than a share `reach` of the time that it has. What the equation
leaves out (batches, hops, unequal queues) is measured: `reach` falls while admitted requests end too late or
close to it, and rises slowly while they do not. So the work that is admitted is done in time, and as much of
it as the servers can do, whatever is offered.

A request without a deadline is admitted if `ahead / capacity` is at most `queue_s`, where that is set.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import exp, frexp, inf

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import MOST_KEYS, NEVER_S, DropReason, Key, Request, count_examples
from slimsched.serving.gateway.messages import SegmentFinished
from slimsched.serving.gateway.observation import Observation

# -- The least that a request may still cost: the cheapest plan that its terms allow, from where it is.

Values = NDArray[np.float64]


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
    """Finds the cheapest rest of a request; the results are kept, so that asking costs little."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.each_s = lru_cache(maxsize=MOST_KEYS)(self._each_s)
        narrowest_s = [min(self._plans_s(m), key=np.mean) for m in cluster.active or cluster.models]
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

    def _plans_s(self, model: ServedModel) -> list[Values]:
        """Device time per example of each plan, one value per server."""
        return [np.sum([self.each_s(key) for key in model.legs(plan)], axis=0) for plan in model.tree.plans]

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
        front: list[tuple[float, Rest]] = []
        for rest, accuracy in sorted(rests, key=lambda one: one[0].work_s):
            if not front or accuracy > front[-1][0]:
                front.append((accuracy, rest))
        return [accuracy for accuracy, _ in front], [rest for _, rest in front]


# -- Work ahead: how much the requests in the system still cost, by the order in which they are served.

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


# -- The pace of a server: how fast it works compared with its profile, measured on what it has done.
#
# A server with more work than a batch shows how fast it is when all its batches are full. One with less work
# runs small batches, which cost more per example; it only shows whether these take as long as they should.

MEMORY_S = 1.0
"""Work from this long ago counts about a third; time in which the server had nothing to do does not pass."""

PRIOR_S = 0.2
"""How much work at the profile's own pace is assumed at the start."""


class ServerPace:
    """Profiled time of the work done, over the time in which the server had work."""

    def __init__(self) -> None:
        self._done_s = self._passed_s = PRIOR_S
        self._since_s: float | None = None

    @property
    def value(self) -> float:
        """The pace: 1 as profiled, 0.5 if everything takes twice as long."""
        return self._done_s / self._passed_s

    def began(self, now_s: float) -> None:
        """Note that the server has work now."""
        if self._since_s is None:
            self._since_s = now_s

    def worked(self, full_s: float, now_s: float) -> None:
        """Note work done that takes `full_s` in full batches, by a server that has much more."""
        if self._since_s is None:
            return
        passed_s = max(1e-6, now_s - self._since_s)
        kept = exp(-passed_s / MEMORY_S)
        self._done_s = self._done_s * kept + full_s
        self._passed_s = self._passed_s * kept + passed_s
        self._since_s = now_s

    def worked_in_part(self, alone_s: float, now_s: float, *, is_idle: bool) -> None:
        """Note a batch that takes `alone_s` alone, by a server that has little or nothing else to do."""
        if self._since_s is not None:
            self.worked(min(alone_s, now_s - self._since_s), now_s)
        if is_idle:
            self._since_s = None

    def stopped(self) -> None:
        """Note that the server has no work any more, without having done it."""
        self._since_s = None


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

    def __init__(self, cluster: Cluster, seen: Observation, queue_s: float = 0.0) -> None:
        """`queue_s` is how long requests without a deadline may have to wait; 0 means for any time."""
        self._seen, self._queue_s = seen, queue_s
        self._ahead = WorkAhead()
        self._paces = [ServerPace() for _ in cluster.names]
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
        for call in _calls(requests):
            if (reason := self.refusal(call[0], count_examples(call), now_s)) is None:
                self._ahead.add(call, self._cheapest.of_request(call[0]).work_s)
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

    def send(self, requests: Sequence[Request], key: Key, server: int, now_s: float) -> None:
        """Note that requests were sent to a server."""
        self._paces[server].began(now_s)
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

    def ran(self, event: SegmentFinished, now_s: float) -> None:
        """Learn from a batch how fast its server is."""
        server, left = event.server, self._seen.outstanding[event.server]
        pace, before, examples = self._paces[server], self._paces[server].value, event.examples
        if left >= self._cluster.batch_limit:
            pace.worked(examples * float(self._cheapest.each_s(event.key)[server]), now_s)
        else:
            alone_s = self._cluster.profiles[server].latency_s(event.key, event.size or examples)
            share = examples / event.size if event.size else 1.0
            pace.worked_in_part(share * alone_s, now_s, is_idle=left <= 0.0)
        if self._seen.alive[server]:
            self._capacity += (pace.value - before) / float(self._cheapest.slowness[server])

    def pace(self, server: int) -> float:
        """How fast a server works compared with its profile."""
        return self._paces[server].value

    def lose(self, server: int) -> None:
        """Note that a server is gone, with the work it had."""
        self._paces[server].stopped()

    def _capacity_now(self) -> float:
        """Seconds of work that all servers do per second, in time of a server of mean speed."""
        if self._alive_ids is not self._seen.alive_ids:
            self._alive_ids = self._seen.alive_ids
            slowness = self._cheapest.slowness
            self._capacity = sum(self._paces[i].value / float(slowness[i]) for i in self._alive_ids)
        return self._capacity


def _calls(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Split requests into runs of neighbours that arrived at the same time with the same terms."""
    start = 0
    for place in range(1, len(requests) + 1):
        if place == len(requests) or not _same_call(requests[start], requests[place]):
            yield requests[start:place]
            start = place


def _same_call(one: Request, other: Request) -> bool:
    return (
        one.arrival_s == other.arrival_s
        and one.deadline_s == other.deadline_s
        and one.model == other.model
        and one.plan == other.plan
        and one.min_accuracy == other.min_accuracy
        and one.priority == other.priority
    )
