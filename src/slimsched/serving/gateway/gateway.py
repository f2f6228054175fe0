"""The gateway: a pure state machine that takes requests in, asks a router where each goes, and answers them.

Events go in with the time, commands come out; it reads no clock and does no I/O. The simulator and the live
cluster drive the same gateway, and a log of its events replays to the same commands.

How it works. Requests wait in a FIFO for each priority, grouped by what they need next (`Fifo`). At each
scheduling step the gateway asks the router about the head of the queue, until the queue is empty or the
router says wait. The route becomes a block of requests at a server, which is noted until it comes back
(`SentBlocks`). When a segment has run, its requests go to the end of the queue for the next segment, or are
answered; where the plan's answer is not sure enough, they go on with a wider plan (`stop_when_sure.py`), and
the first answer is kept in case time runs out (`Promises`).

When a server dies, every request it held begins again from its input, and its late messages are ignored.
Every request is answered, dropped or refused exactly once. Which requests are admitted at all is decided by
predicted finish (`admission.py`). A server that a request no longer needs is told to forget its activation.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence, Set
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter
from typing import Protocol, assert_never

import numpy as np
from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import GATEWAY, Cluster
from slimsched.serving.domain.model import ModelsChanged, ServedModel
from slimsched.serving.domain.request import (
    NEVER_S,
    NO_PLAN,
    Block,
    DropReason,
    Key,
    Request,
    RequestsCancelled,
    block_of,
    count_examples,
    homes_of,
    ids_of,
    onward,
    split_by,
    with_answer,
)
from slimsched.serving.gateway.admission import Admission
from slimsched.serving.gateway.goal import Goal, choice_within_terms
from slimsched.serving.gateway.messages import (
    Answer,
    BlockDropped,
    Command,
    Drop,
    Event,
    Forget,
    GatewayOptions,
    GoalChanged,
    InputLost,
    RecallRequests,
    RequestsArrived,
    RequestsRefused,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerGivenUp,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.gateway.observation import (
    AnswerListener,
    GoalFollower,
    Observation,
    Route,
    Router,
    ServiceCosts,
)
from slimsched.serving.gateway.stop_when_sure import Escalation

# -- The central FIFO: requests that wait for a route, in order of arrival, grouped by what they need.

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


# -- A block that was sent to a server and has not come back.


class SentBlock(Struct):
    """Which requests of it are still out, how many examples they have, where, and what they cost."""

    server: int
    requests: tuple[Request, ...]
    examples: int
    work_s: float  # per example
    source: int  # where its inputs came from
    sent_s: float = 0.0
    expected_s: float = 0.0  # by profile: the backlog that it joined, and its own work

    @property
    def census(self) -> tuple[int, int, int, int]:
        """Where its examples are, their model, the segment that comes next, and how many they are."""
        first = self.requests[0]
        return self.server, first.model, first.segment, self.examples


# -- The blocks that are at servers: what was sent there and has not come back.


class SentBlocks:
    """Blocks by id. The observation's count of what each server has follows them."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen
        self._blocks: dict[int, SentBlock] = {}
        self._settled: set[int] = set()  # examples that were answered meanwhile
        self._late: dict[int, list[Request]] = {}  # those of them that have come back, by server

    def get(self, block: int) -> SentBlock | None:
        """Return a block, or None if it is not at a server any more."""
        return self._blocks.get(block)

    def add(self, block: int, sent: SentBlock) -> None:
        """Note what goes to which server."""
        self._blocks[block], seen = sent, self._seen
        sent.sent_s, sent.expected_s = seen.now_s, seen.sent(sent.server, sent.examples, sent.work_s)

    def bring_back(self, block: Block) -> tuple[Request, ...]:
        """Note that a block has come back and return its requests; none if the block is stale."""
        sent = self._blocks.get(block.id)
        if sent is None:
            return ()
        count, seen = block.examples, self._seen
        if count == sent.examples:
            del self._blocks[block.id]
            seen.returned(sent.server, seen.now_s - sent.sent_s, sent.expected_s)
        else:
            sent.examples -= count
            _, sent.requests = split_by(sent.requests, set(ids_of(block.requests)))
        seen.came_back(sent.server, count, sent.work_s)
        return self._unsettled(block.requests, sent.server) if self._settled else block.requests

    def lose(self, server: int) -> Iterator[SentBlock]:
        """Take out every block that a dead server had; the observation forgets them by itself."""
        for block in [block for block, sent in self._blocks.items() if sent.server == server]:
            sent = self._blocks.pop(block)
            sent.requests = self._unsettled(sent.requests, server)
            if sent.requests:
                yield sent
        self._late.pop(server, None)

    def ids(self) -> set[int]:
        """The ids of all examples that are at servers."""
        return {number for sent in self._blocks.values() for number in ids_of(sent.requests)}

    def settle(self, numbers: frozenset[int]) -> list[Request]:
        """Return those of these examples that are at servers; they are answered now, whatever comes back."""
        there = [
            request
            for sent in self._blocks.values()
            for request in split_by(sent.requests, numbers)[0]
            if request.id not in self._settled
        ]
        self._settled.update(ids_of(there))
        return there

    def _unsettled(self, requests: tuple[Request, ...], server: int) -> tuple[Request, ...]:
        """Return the requests that still need an answer; the others have come back now."""
        gone, others = split_by(requests, self._settled)
        self._settled.difference_update(ids_of(gone))
        if gone:
            self._late.setdefault(server, []).extend(gone)
        return others

    def take_late(self, server: int) -> list[Request]:
        """Return what has come back from a server, since this was last asked, after it was answered."""
        return self._late.pop(server, [])

    def recalls(self, numbers: frozenset[int]) -> list[RecallRequests]:
        """Ask servers to skip these requests if they have not begun them."""
        return [
            RecallRequests(server=sent.server, requests=there)
            for sent in self._blocks.values()
            if (there := tuple(number for number in ids_of(sent.requests) if number in numbers))
        ]

    def involve(self, server: int) -> bool:
        """Whether any block is at a server, or comes from there."""
        return any(server in (sent.server, sent.source) for sent in self._blocks.values())

    def census(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield for each block where it is, its model, its segment and how many examples it has."""
        return (sent.census for sent in self._blocks.values())


# -- Forgetting: which activations servers may free because a request has ended.


def forget(holder: int, requests: Sequence[Request]) -> list[Command]:
    """Free the activations of these requests at `holder`, if that is a server, and where they are kept."""
    ids = {} if holder == GATEWAY or not requests else {holder: ids_of(requests)}
    return _commands(ids | homes_of(requests))


def forget_kept(requests: Sequence[Request]) -> list[Command]:
    """Free what servers keep for requests that are answered."""
    return _commands(homes_of(requests))


def _commands(ids: dict[int, list[int]]) -> list[Command]:
    return [Forget(server=server, requests=tuple(requests)) for server, requests in ids.items()]


# -- How the gateway comes by models that are loaded while it runs, and by a router for them.


class Growth(Protocol):
    """Knows the models that may be added, and what they cost on each server."""

    def change(self, cluster: Cluster, change: ModelsChanged) -> Cluster:
        """The cluster after models were added and others retired."""
        ...

    def router(self, cluster: Cluster, goal: Goal | None) -> Router:
        """Make a router for a cluster whose models have changed; the goal is one stated while running."""
        ...


# -- Lets a router that decides segment by segment plan whole networks.
#
# Where the scenario asks for plans of whole networks, the gateway asks such a router several times in a row:
# for the head, and then for each later segment as if the head had run on the server just chosen. What the
# router says becomes one plan. So every router may save the messages of going back and forth, not only those
# that were written for it.

HEAD = ("segment", "previous", "source", "path", "choices", "penalty_s", "is_decided")
"""What changes in the observation from segment to segment."""


class NetworkPlanner:
    """Asks a router for all remaining segments of the head, on one server."""

    def __init__(self, router: Router, models: Sequence[ServedModel]) -> None:
        self._router = router
        self._models = models

    def route(self, seen: Observation) -> Route | None:
        """Return the router's route for the head, with the choices it would make afterwards."""
        route = self._router.route(seen)
        if route is None or route.ahead or seen.plan != NO_PLAN:
            return route
        before = {name: getattr(seen, name) for name in HEAD}
        try:
            ahead = self._ahead(seen, route)
        finally:
            for name, value in before.items():
                setattr(seen, name, value)
        return Route(route.server, route.choice, route.group, route.reason, ahead, route.why)

    def _ahead(self, seen: Observation, route: Route) -> tuple[int, ...]:
        model, path = self._models[seen.model], (*seen.path, route.choice)
        seen.source, seen.is_decided = route.server, True
        seen.penalty_s = np.full(len(seen.penalty_s), inf)
        seen.penalty_s[route.server] = 0.0
        ahead: list[int] = []
        while choices := model.tree.after[path]:
            seen.path, seen.choices = path, choices
            seen.segment, seen.previous, _ = model.next[path]
            following = self._router.route(seen)
            if following is None or following.choice not in choices:
                break
            ahead.append(following.choice)
            path = (*path, following.choice)
        return tuple(ahead)


# -- Promises: an answer that waits for a wider plan's is sent before the deadline, whatever comes back.

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


RETRY_S = 0.001
"""A router that is asked at each event, and said wait, is asked again after this time at the latest."""


class Gateway:
    """A pure state machine around a router: events go in, commands come out."""

    def __init__(
        self,
        cluster: Cluster,
        router: Router,
        options: GatewayOptions,
        *,
        first_block: int = 0,
        growth: Growth | None = None,
    ) -> None:
        self.cluster, self._growth, self.options = cluster, growth, options
        self.goal: Goal | None = None
        """The goal that was stated last while running, if any."""
        self.given_up: dict[int, str] = {}
        """Servers that cannot be started, and why."""
        self.hopeless = ""  # why no server is up and none is expected
        self._use(router)
        self.seen = Observation(len(cluster), len(cluster.models))
        self.seen.plans = options.plan == "network"
        self._queues: dict[int, Fifo] = {}  # by priority, highest first
        self._sent = SentBlocks(self.seen)
        self._promises = Promises(self._sent)
        self.admission = Admission(cluster, self.seen, options.queue_s) if options.early_drop else None
        self.costs = ServiceCosts(cluster, self.seen)
        self._next_block = first_block  # gateways that share servers start at different numbers
        self._in_system = 0
        self._cancelled: set[int] = set()  # to be dropped when the gateway next sees them
        self._has_terms = self._has_kinds = False  # whether any so far had terms; or a priority, or a model
        self._wake_s: float | None = None

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Take one event into account and return what must now be done."""
        commands: list[Command] = []
        self.seen.now_s = now_s
        match event:
            case RequestsArrived(requests=requests):
                commands += self._admit(requests)
            case RequestsRefused(counts=counts):
                self.seen.count_arrivals(counts, now_s)
            case RequestsCancelled(requests=numbers):
                self._cancelled.update(numbers)
                commands += [*self._sent.recalls(frozenset(numbers)), *self._sweep()]
            case SegmentFinished():
                self.seen.active_w += event.energy_j
                self.costs.ran(event, self.cluster)
                commands += self._advance(event, now_s)
                if self.admission is not None:
                    self.admission.ran(event, now_s)
            case BlockDropped(block=block, reason=reason, detail=detail):
                if gone := self._sent.bring_back(block):
                    commands += self._drop(gone, reason, detail)
            case InputLost(block=block):
                commands += self._begin_again(block)
            case TelemetryReceived(server=server, snapshot=snapshot):
                self.seen.note(server, snapshot)
            case ServerDown(server=server):
                commands += [*self._rescue(server), *self._sweep()]
            case ServerLeaving(server=server):
                self.seen.set_alive(server, False)
            case ServerUp(server=server):
                self.seen.set_alive(server, True)
                self.given_up.pop(server, None)
                self.hopeless = ""
            case ServerGivenUp(server=server, reason=reason, left=left):
                self.given_up[server], self.hopeless = reason, "" if left else reason
                commands += self._sweep()
            case GoalChanged(goal=goal):
                if not isinstance(self.router, GoalFollower):
                    raise SlimError(f"router {type(self.router).__name__} follows no goal: it cannot change")
                self.goal = goal
                self._use(self.router.with_goal(goal))
            case ModelsChanged():
                self._change_models(event)
            case Wake():
                self._wake_s = None
                if self.options.step_s > 0.0:
                    commands += self._step(now_s)
            case _:
                assert_never(event)
        if self._promises.are_due(now_s):
            orders, done = self._promises.keep(now_s)
            commands += [*orders, *(self._answer(done) if done else ())]
        if self._queues and self.options.step_s <= 0.0:
            commands += self._step(now_s)
        if self._queues and self._wake_s is None:
            self._wake_s = now_s + (self.options.step_s or RETRY_S)
            commands.append(WakeAt(at_s=self._wake_s))
        return commands

    @property
    def awaits_step(self) -> bool:
        """Whether the next scheduling step has a time already, so that arrivals can wait for it together."""
        return self._wake_s is not None

    @property
    def in_system(self) -> int:
        """Number of examples taken in and neither answered nor dropped."""
        return self._in_system

    def census(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield where examples are (GATEWAY: not sent), their model, their segment and how many they are."""
        yield from self._sent.census()
        for fifo in self._queues.values():
            yield from ((GATEWAY, place[4], place[0], count) for place, count in fifo.counts())

    def holds_for(self, server: int) -> bool:
        """Whether a server has work for this gateway, or activations that are still needed."""
        return self._sent.involve(server) or any(fifo.waits_for(server) for fifo in self._queues.values())

    def _change_models(self, change: ModelsChanged) -> None:
        """Serve other models from now on, with a fresh router; what is under way goes on as it was."""
        if self._growth is None:
            raise SlimError("this gateway cannot change its models: nobody has told it where they come from")
        self.cluster = self._growth.change(self.cluster, change)
        self.seen.know_models(len(self.cluster.models))
        self._use(self._growth.router(self.cluster, self.goal))
        if self.admission is not None:
            self.admission.use(self.cluster)

    def _use(self, router: Router) -> None:
        """Use this router from now on."""
        self.router = router
        planner = NetworkPlanner(router, self.cluster.models) if self.options.plan == "network" else None
        self._ask = router.route if planner is None else planner.route
        self._listener = router if isinstance(router, AnswerListener) else None
        self._escalation = Escalation(self.cluster, router)

    def _step(self, now_s: float) -> list[Command]:
        """Take one scheduling step: route the head until nothing waits or the router says wait."""
        commands: list[Command] = []
        seen, admission = self.seen, self.admission
        seen.begin_step(now_s)
        while self._queues and seen.alive_ids:
            levels = self._queues
            queue = levels[max(levels) if len(levels) > 1 else next(iter(levels))]
            head = queue.head()
            if head is None:
                self._queues = {level: fifo for level, fifo in self._queues.items() if len(fifo)}
                continue
            place, first, count = head
            if admission is not None and (why := admission.loss(first, now_s)) is not None:
                commands += self._drop(queue.take(place, first.count), why, holder=place[2])
                seen.fifo -= first.count
                continue
            seen.segment, seen.previous, seen.source, seen.plan, seen.model, _ = place
            seen.count, seen.path = count, first.path
            seen.choices = self.cluster.models[place[4]].tree.after[first.path]
            seen.arrival_s, seen.deadline_s = first.arrival_s, first.deadline_s
            seen.min_accuracy = first.min_accuracy
            route = self._ask(seen)
            if route is None:
                break
            requests = queue.take(place, max(1, route.group))
            seen.fifo -= count_examples(requests)
            if self._cancelled:
                requests = self._sift(requests, commands, place[2])
            if requests:
                commands.append(self._send(route, self._key(route, place, requests), requests, place[2]))
        return commands

    def _key(self, route: Route, place: Place, requests: tuple[Request, ...]) -> Key:
        """Return the key that a route asks for; check the route and respect the requests' own terms."""
        segment, previous, _, plan, number, _ = place
        model = self.cluster.models[number]
        choice, *ahead = route.choice, *route.ahead
        if plan >= 0:
            choice, *ahead = model.tree.plans[plan][segment:]
        elif self._has_terms and any(request.has_terms for request in requests):
            choice, ahead = choice_within_terms(self.cluster, route.server, choice, requests), []
        key = model.keys.get((segment, choice, previous))
        if key is None or route.group < 1 or not self.seen.alive[route.server]:
            raise SlimError(
                f"router {type(self.router).__name__} answered {route}: the server must be alive "
                f"(alive: {self.seen.alive_ids}), the choice one of the model's, the group at least 1"
            )
        return onward(key, tuple(ahead)) if ahead else key

    def _sift(
        self, requests: tuple[Request, ...], commands: list[Command], holder: int
    ) -> tuple[Request, ...]:
        """Drop cancelled requests; return the others."""
        gone, others = split_by(requests, self._cancelled)
        if gone:
            commands += self._drop(gone, DropReason.CANCELLED, holder=holder)
        return others

    def _send(self, route: Route, key: Key, requests: tuple[Request, ...], source: int) -> SendBlock:
        """Make a block and note what goes to which server."""
        self._next_block += 1
        work_s = self.cluster.key_s(key, route.server)
        if self.admission is not None:
            self.admission.send(requests, key, route.server, self.seen.now_s)
            work_s /= self.admission.pace(route.server)  # the router sees how long it will really take
        examples = count_examples(requests)
        self._sent.add(self._next_block, SentBlock(route.server, requests, examples, work_s, source))
        block = block_of(self._next_block, key, requests, keep=key.model in self._escalation.models)
        return SendBlock(server=route.server, block=block, source=source, reason=route.reason, why=route.why)

    def _admit(self, requests: tuple[Request, ...]) -> list[Command]:
        """Take in the requests that there is room for and that can be answered in time; drop the others."""
        self.seen.arrived(requests, self.seen.now_s)
        taken: Sequence[Request] = requests
        refused: dict[DropReason, tuple[Request, ...]] = {}
        if self.admission is not None:
            taken, more = self.admission.admit(taken, self.seen.now_s)
            refused |= more
        self._in_system += count_examples(taken)
        if not (self._has_kinds and self._has_terms):
            for request in taken:
                if request.priority or request.has_terms or request.model:
                    self._has_kinds = True
                    self._has_terms = self._has_terms or request.has_terms
        self._wait(taken, GATEWAY)
        drops = [Drop(requests=gone, reason=reason) for reason, gone in refused.items() if gone]
        return [*drops, *self._sweep()]

    def _wait(self, requests: Sequence[Request], source: int, *, first: bool = False) -> None:
        """Queue requests on paths of one kind whose inputs lie at `source`, by priority."""
        if requests:
            for kind, members in by_kind(requests) if self._has_kinds else ((PLAIN, requests),):
                self._push(members, kind, source, first)

    def _push(self, requests: Sequence[Request], kind: Kind, source: int, first: bool) -> None:
        """Queue requests of one kind: in front of all others, or at the end."""
        priority, plan, model = kind
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = Fifo()
        segment, previous, way = self.cluster.models[model].next[requests[0].path]
        place = (segment, previous, source, plan, model, way)
        if first:
            queue.push_front(place, requests)
        else:
            queue.push(place, requests)
        self.seen.fifo += count_examples(requests)

    def _advance(self, event: SegmentFinished, now_s: float) -> list[Command]:
        """Move requests on to their next segment, or answer them after the last."""
        commands: list[Command] = []
        judged: list[Request] = []  # all of a batch together: what goes on is one block, not one per request
        server, choices = event.server, (event.choice, *event.ahead)
        for block in event.blocks:
            back, model = self._sent.bring_back(block), self.cluster.models[block.key.model]
            if self._cancelled:
                ended = model.spec.ends(block.key.segment + len(choices) - 1, choices[-1])
                back = self._sift(back, commands, GATEWAY if ended else server)
            if not back:
                continue
            moved = self._escalation.moved(back, choices, server)
            if not model.tree.is_plan(moved[0].path):
                if self.admission is not None:
                    self.admission.wait(moved)
                self._wait(moved, server)
                continue
            is_late = self.admission is not None and block.deadline_s < now_s
            if is_late and (late := tuple([r for r in moved if r.deadline_s < now_s])):
                commands += self._drop(late, DropReason.DEADLINE_PASSED)
                moved = [request for request in moved if request.deadline_s >= now_s]
            if event.confidence and self._escalation.models:
                judged += moved
            elif moved:
                commands += self._answer(moved)
        commands += self._promises.forget(server)
        done, further = self._escalation.sort(judged, event, self.seen) if judged else ([], [])
        commands += [self._send(one.route, one.key, one.requests, one.source) for one in further]
        commands += self._promises.make([request for one in further for request in one.requests], now_s)
        return [*commands, *(self._answer(done) if done else ())]

    def _answer(self, requests: list[Request]) -> list[Command]:
        """Answer requests at the plans they have run, and free what is kept for them."""
        answer, count = Answer(requests=tuple(requests)), count_examples(requests)
        self._in_system -= count
        self.seen.answered(count)
        if self.admission is not None:
            self.admission.leave(requests, self.seen.now_s)
        if self._listener is not None:
            self._listener.answered(answer.requests, self.seen.now_s)
        if self._cancelled:
            self._cancelled.difference_update(ids_of(requests))
        return [answer, *(forget_kept(requests) if self._escalation.models else ())]

    def _drop(
        self, requests: tuple[Request, ...], reason: DropReason, detail: str = "", holder: int = GATEWAY
    ) -> list[Command]:
        """Give up requests; the server that holds their activations, if any, may free them."""
        if self._escalation.models and reason not in (DropReason.CANCELLED, DropReason.DEADLINE_PASSED):
            done, rest = with_answer(requests)
            if done:
                dropped = self._drop(tuple(rest), reason, detail, holder) if rest else []
                return [*self._answer(done), *dropped]
        self._in_system -= count_examples(requests)
        if self._cancelled:
            self._cancelled.difference_update(ids_of(requests))
        if reason is DropReason.CANCELLED and max(r.deadline_s for r in requests) <= self.seen.now_s:
            reason = DropReason.DEADLINE_PASSED  # nobody waits for an answer that is too late
        if self.admission is not None:
            self.admission.leave(requests, self.seen.now_s, reason)
        return [Drop(requests=requests, reason=reason, detail=detail), *forget(holder, requests)]

    def _sweep(self) -> list[Command]:
        """While no server is up, drop at once what nobody waits for, and all if none is expected."""
        if self.seen.alive_ids or not (self._cancelled or self.hopeless):
            return []
        commands: list[Command] = []
        for fifo in self._queues.values():
            for request, holder in fifo.take_out(None if self.hopeless else self._cancelled):
                others = self._sift((request,), commands, holder)
                commands += self._drop(others, DropReason.NO_SERVER, self.hopeless, holder) if others else []
                self.seen.fifo -= request.count
        self._queues = {level: fifo for level, fifo in self._queues.items() if len(fifo)}
        return commands

    def _begin_again(self, block: Block) -> list[Command]:
        """Restart the requests of a block whose inputs are missing, and free what is left of the inputs."""
        sent, back = self._sent.get(block.id), self._sent.bring_back(block)
        return [] if sent is None else [*self._restart(back), *forget(sent.source, back)]

    def _rescue(self, server: int) -> list[Command]:
        """Restart every request that a dead server held, from its original input."""
        self.seen.lose(server)
        commands: list[Command] = []
        lost = [request for fifo in self._queues.values() for request in fifo.take_from(server)]
        self.seen.fifo -= count_examples(lost)
        for sent in self._sent.lose(server):
            lost.extend(sent.requests)
            if sent.source != server:  # the dead server may not have fetched them yet
                commands += forget(sent.source, sent.requests)
        if self.admission is not None:
            self.admission.lose(server)
        return [*commands, *self._restart(lost)]

    def _restart(self, requests: Sequence[Request]) -> list[Command]:
        """Queue requests again from their input, in front of all others; answer those that have an answer."""
        done, rest = with_answer(requests)
        again = [request.restarted() for request in rest]
        if self.admission is not None:
            self.admission.wait(again)
        self._wait(again, GATEWAY, first=True)
        return self._answer(done) if done else []


# -- Health: which servers take work, and what is the matter with the others, in words.

WAITS = "up, but it waits for a core: this machine is full"


class Health(Struct, frozen=True, kw_only=True):
    """The state of each server in words (up, down, or given up and why), and why none is up if none is."""

    servers: dict[str, str]
    trouble: str = ""


def health_of(gateway: Gateway, waiting: Collection[int] = ()) -> Health:
    """Return the health of a gateway's servers, of which these wait for a core."""
    alive, given_up = gateway.seen.alive, gateway.given_up
    up = {index: WAITS if index in waiting else "up" for index in gateway.seen.alive_ids}
    servers = {
        name: up.get(index) or given_up.get(index, "down") for index, name in enumerate(gateway.cluster.names)
    }
    return Health(servers=servers, trouble="" if alive.any() else _trouble(gateway))


def _trouble(gateway: Gateway) -> str:
    given_up = "; ".join(gateway.given_up.values())
    if gateway.hopeless:
        return f"no server is left: {given_up}; find the cause in the log (they are tried again now and then)"
    if given_up:
        return f"no server is up at the moment; some are being started again, but {given_up}"
    return "no server is up at the moment; they are being started again"
