"""The gateway: a pure state machine that takes requests in, asks a router where each goes, and answers them.

Events go in with the time, commands come out; it reads no clock and does no I/O. The simulator and the live
cluster drive the same gateway, and a log of its events replays to the same commands.

How it works. Requests wait in a FIFO for each priority, grouped by what they need next (`Fifo`). At each
scheduling step the gateway asks the router about the head of the queue, until the queue is empty or the
router says wait. The route becomes a block of requests at a server, which is noted until it comes back
(`SentBlocks`). When a segment has run, its requests go to the end of the queue for the next segment, or are
answered; where the plan's answer is not sure enough, they go on with a wider plan (`stop_when_sure.py`), and
the first answer is kept in case time runs out (`FallbackAnswers`).

When a server dies, every request it held begins again from its input, and its late messages are ignored.
Every request is answered, dropped or refused exactly once. Which requests are admitted at all is decided by
predicted finish (`admission.py`). A server that a request no longer needs is told to forget its activation.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol, assert_never

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError, check
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
from slimsched.serving.gateway.admission import PLAIN, Admission, Fifo, QueuePlace, by_kind
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
    Head,
    Observation,
    Route,
    Router,
    ServerSpeeds,
)
from slimsched.serving.gateway.stop_when_sure import Escalation


class SentBlock(Struct):
    """A block at a server: which of its requests are still out, their examples, and what they cost."""

    server: int
    requests: tuple[Request, ...]
    examples: int
    work_s: float  # per example
    source: int  # where its inputs came from
    sent_s: float = 0.0
    expected_s: float = 0.0  # by profile: the backlog that it joined, and its own work


class SentBlocks:
    """The blocks at servers, by id. The observation's count of what each server has follows them."""

    def __init__(self, seen: Observation, speeds: ServerSpeeds) -> None:
        self._seen, self._speeds = seen, speeds
        self._blocks: dict[int, SentBlock] = {}
        self.settled: set[int] = set()
        """Examples at servers that have their answer already."""
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
            self._speeds.returned(sent.server, seen.now_s - sent.sent_s, sent.expected_s)
        else:
            sent.examples -= count
            _, sent.requests = split_by(sent.requests, set(ids_of(block.requests)))
        seen.came_back(sent.server, count, sent.work_s)
        return self._unsettled(block.requests, sent.server) if self.settled else block.requests

    def lose(self, server: int) -> Iterator[SentBlock]:
        """Take out every block that a dead server had; the observation forgets them by itself."""
        for block in [block for block, sent in self._blocks.items() if sent.server == server]:
            sent = self._blocks.pop(block)
            sent.requests = self._unsettled(sent.requests, server)
            if sent.requests:
                yield sent
        self._late.pop(server, None)

    def ids(self) -> list[int]:
        """The ids of all examples that are at servers."""
        return [number for sent in self._blocks.values() for number in ids_of(sent.requests)]

    def work(self, servers: int) -> tuple[list[float], list[float]]:
        """Return how many examples each server has, and their work."""
        outstanding, backlog_s = [0.0] * servers, [0.0] * servers
        for sent in self._blocks.values():
            outstanding[sent.server] += sent.examples
            backlog_s[sent.server] += sent.examples * sent.work_s
        return outstanding, backlog_s

    def settle(self, numbers: frozenset[int]) -> list[Request]:
        """Return those of these examples that are at servers; they are answered now, whatever comes back."""
        there = [
            request
            for sent in self._blocks.values()
            for request in split_by(sent.requests, numbers)[0]
            if request.id not in self.settled
        ]
        self.settled.update(ids_of(there))
        return there

    def _unsettled(self, requests: tuple[Request, ...], server: int) -> tuple[Request, ...]:
        """Return the requests that still need an answer; the others have come back now."""
        gone, others = split_by(requests, self.settled)
        self.settled.difference_update(ids_of(gone))
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
        for sent in self._blocks.values():
            yield sent.server, sent.requests[0].model, sent.requests[0].segment, sent.examples


def forget(holder: int, requests: Sequence[Request]) -> list[Command]:
    """Free the activations of these requests at `holder`, if that is a server, and where they are kept."""
    ids = {} if holder == GATEWAY or not requests else {holder: ids_of(requests)}
    ids |= homes_of(requests)
    return [Forget(server=server, requests=tuple(numbers)) for server, numbers in ids.items()]


class ModelChanges(Protocol):
    """Knows the models that may be added while the gateway runs, and what they cost on each server."""

    def change(self, cluster: Cluster, change: ModelsChanged) -> Cluster:
        """The cluster after models were added and others retired."""

    def router(self, cluster: Cluster, goal: Goal | None) -> Router:
        """Make a router for a cluster whose models have changed; the goal is one stated while running."""


class NetworkPlanner:
    """Lets a router that decides segment by segment plan whole networks, each on one server.

    It asks the router several times in a row: for the head, and then for each later segment as if the head
    had run on the server just chosen. What the router says becomes one plan. So every router may save the
    messages of going back and forth, not only those that were written for it.
    """

    def __init__(self, router: Router, models: Sequence[ServedModel]) -> None:
        self._router = router
        self._models = models

    def route(self, seen: Observation) -> Route | None:
        """Return the router's route for the head, with the choices it would make afterwards."""
        route = self._router.route(seen)
        if route is None or route.ahead or seen.plan != NO_PLAN:
            return route
        head, penalty_s = seen.head, seen.penalty_s
        try:
            ahead = self._ahead(seen, route)
        finally:
            seen.look_at(head)
            seen.penalty_s, seen.is_decided = penalty_s, False
        return Route(route.server, route.choice, route.group, route.reason, ahead, route.why)

    def _ahead(self, seen: Observation, route: Route) -> tuple[int, ...]:
        head, model, path = seen.head, self._models[seen.model], (*seen.path, route.choice)
        seen.is_decided = True
        seen.penalty_s = np.full(len(seen.penalty_s), inf)
        seen.penalty_s[route.server] = 0.0
        ahead: list[int] = []
        while choices := model.tree.after[path]:
            segment, previous, _ = model.next[path]
            seen.look_at(
                replace(
                    head, segment=segment, previous=previous, source=route.server, path=path, choices=choices
                )
            )
            following = self._router.route(seen)
            if following is None or following.choice not in choices:
                break
            ahead.append(following.choice)
            path = (*path, following.choice)
        return tuple(ahead)


SPARE, LEAST_SPARE_S = 0.04, 0.005
"""A fallback answer is sent this share of its time before the deadline, and at least this long."""

WHY = "the deadline left no time for the wider plan"

MOST = 4096
"""How many entries may be kept of requests that are answered meanwhile."""


class FallbackAnswers:
    """For each request that tries a wider plan: when the answer that it has must be sent at the latest."""

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
        if len(self._heap) > self._most:  # keep those whose requests are still at servers
            there = set(self._sent.ids())
            self._heap = [one for one in self._heap if one[1] in there]
            heapify(self._heap)
            self._most = 2 * len(self._heap) + MOST
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

    def _wakes(self, now_s: float) -> list[Command]:
        """Ask to be woken for the first, unless that was asked already."""
        if not self._heap or self._heap[0][0] >= self._wake_s:
            return []
        self._wake_s = max(now_s, self._heap[0][0])
        return [WakeAt(at_s=self._wake_s)]


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
        model_changes: ModelChanges | None = None,
    ) -> None:
        self.cluster, self._model_changes, self.options = cluster, model_changes, options
        self.goal: Goal | None = None
        """The goal that was stated last while running, if any."""
        self.given_up: dict[int, str] = {}
        """Servers that cannot be started, and why."""
        self.hopeless = ""  # why no server is up and none is expected
        self._use(router)
        self.seen = Observation(len(cluster), len(cluster.models))
        self.seen.plans = options.plan == "network"
        self._queues: dict[int, Fifo] = {}  # by priority, highest first
        self.speeds = ServerSpeeds(cluster, self.seen)
        self._sent = SentBlocks(self.seen, self.speeds)
        self._fallback_answers = FallbackAnswers(self._sent)
        self.admission: Admission | None = None
        if options.early_drop:
            self.admission = Admission(cluster, self.seen, self.speeds.servers, options.queue_s)
        self._next_block = first_block  # gateways that share servers start at different numbers
        self.in_system = 0
        """Number of examples taken in and neither answered nor dropped."""
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
                self.speeds.ran(event)
                if self.admission is not None:
                    self.speeds.worked(event, now_s)
                    self.admission.ran()
                commands += self._advance(event, now_s)
            case BlockDropped(block=block, reason=reason, detail=detail):
                if gone := self._sent.bring_back(block):
                    commands += self._drop(gone, reason, detail)
            case InputLost(block=block):
                if (sent := self._sent.get(block.id)) is not None:
                    back = self._sent.bring_back(block)
                    commands += [*self._restart(back), *forget(sent.source, back)]
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
                self._follow(goal)
            case ModelsChanged():
                self._change_models(event)
            case Wake():
                self._wake_s = None
                if self.options.step_s > 0.0:
                    commands += self._step(now_s)
            case _:
                assert_never(event)
        if self._fallback_answers.are_due(now_s):
            orders, done = self._fallback_answers.keep(now_s)
            commands += [*orders, *(self._answer(done) if done else ())]
        if self._queues and self.options.step_s <= 0.0:
            commands += self._step(now_s)
        if self._queues and self._wake_s is None:
            self._wake_s = now_s + (self.options.step_s or RETRY_S)
            commands.append(WakeAt(at_s=self._wake_s))
        return commands

    def _follow(self, goal: Goal) -> None:
        if not isinstance(self.router, GoalFollower):
            raise SlimError(f"router {type(self.router).__name__} follows no goal: it cannot change")
        self.goal = goal
        self._use(self.router.with_goal(goal))

    @property
    def awaits_step(self) -> bool:
        """Whether the next scheduling step has a time already, so that arrivals can wait for it together."""
        return self._wake_s is not None

    def census(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield where examples are (GATEWAY: not sent), their model, their segment and how many they are."""
        yield from self._sent.census()
        for fifo in self._queues.values():
            yield from ((GATEWAY, place.model, place.segment, count) for place, count in fifo.counts())

    def validate(self) -> None:
        """Check that each example is in one place and that all counts agree; for tests, after any event."""
        seen, queued = self.seen, [number for fifo in self._queues.values() for number in fifo.ids()]
        known = [*queued, *self._sent.ids()]
        check(len(set(known)) == len(known), "an example is in two places: {}", known)
        settled = self._sent.settled
        check(settled <= set(known), "settled examples {} are not at servers", settled)
        check(len(known) - len(settled) == self.in_system, "{} in the system: {}", self.in_system, known)
        check(len(queued) == seen.fifo, "{} counted as queued: {}", seen.fifo, queued)
        check(all(map(len, self._queues.values())) or not queued, "an empty queue is kept")
        outstanding, backlog_s = self._sent.work(len(self.cluster))
        check(
            outstanding == seen.outstanding.tolist(), "sent: {}, counted: {}", outstanding, seen.outstanding
        )
        check(np.allclose(backlog_s, seen.backlog_s), "work sent: {}, not {}", backlog_s, seen.backlog_s)
        up = [server for server in range(len(self.cluster)) if seen.alive[server]]
        check(up == seen.alive_ids and not seen.penalty_s[up].any(), "up: {}, listed: {}", up, seen.alive_ids)
        if self.admission is not None:
            self.admission.validate(known)

    def holds_for(self, server: int) -> bool:
        """Whether a server has work for this gateway, or activations that are still needed."""
        return self._sent.involve(server) or any(fifo.waits_for(server) for fifo in self._queues.values())

    def _change_models(self, change: ModelsChanged) -> None:
        """Serve other models from now on, with a fresh router; what is under way goes on as it was."""
        if self._model_changes is None:
            raise SlimError("this gateway cannot change its models: nobody has told it where they come from")
        self.cluster = self._model_changes.change(self.cluster, change)
        self.seen.know_models(len(self.cluster.models))
        self.speeds.use(self.cluster)
        self._use(self._model_changes.router(self.cluster, self.goal))
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
                commands += self._drop(queue.take(place, first.count), why, holder=place.source)
                seen.fifo -= first.count
                continue
            seen.look_at(self._head(place, first, count))
            route = self._ask(seen)
            if route is None:
                break
            requests = queue.take(place, max(1, route.group))
            seen.fifo -= count_examples(requests)
            if self._cancelled:
                requests = self._sift(requests, commands, place.source)
            if requests:
                commands.append(self._send(route, self._key(route, place, requests), requests, place.source))
        return commands

    def _head(self, place: QueuePlace, first: Request, count: int) -> Head:
        """Describe the requests of the place that is served next, and the first of them."""
        after = self.cluster.models[place.model].tree.after[first.path]
        asked = first.arrival_s, first.deadline_s, first.min_accuracy, place.plan
        return Head(
            place.model, place.segment, place.previous, place.source, count, first.path, after, *asked
        )

    def _key(self, route: Route, place: QueuePlace, requests: tuple[Request, ...]) -> Key:
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
            self.admission.send(requests, key, route.server)
            self.speeds.servers[route.server].began(self.seen.now_s)
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
            taken, refused = self.admission.admit(taken, self.seen.now_s)
        self.in_system += count_examples(taken)
        if not (self._has_kinds and self._has_terms):
            for request in taken:
                if request.priority or request.has_terms or request.model:
                    self._has_kinds = True
                    self._has_terms = self._has_terms or request.has_terms
        self._wait(taken, GATEWAY)
        return [*(Drop(requests=gone, reason=why) for why, gone in refused.items()), *self._sweep()]

    def _wait(self, requests: Sequence[Request], source: int, *, first: bool = False) -> None:
        """Queue requests on paths of one kind whose inputs lie at `source`, by priority."""
        if not requests:
            return
        for (priority, plan, model), members in (
            by_kind(requests) if self._has_kinds else ((PLAIN, requests),)
        ):
            queue = self._queues.get(priority)
            if queue is None:
                queue = self._queues[priority] = Fifo()
            segment, previous, way = self.cluster.models[model].next[members[0].path]
            queue.push(QueuePlace(segment, previous, source, plan, model, way), members, first=first)
            self.seen.fifo += count_examples(members)

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
            is_judged = model.number in self._escalation.models
            moved = [one.after_at(choices, server) if is_judged else one.after(choices) for one in back]
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
        commands += forget(server, self._sent.take_late(server))
        done, further = self._escalation.sort(judged, event, self.seen) if judged else ([], [])
        commands += [self._send(one.route, one.key, one.requests, one.source) for one in further]
        commands += self._fallback_answers.make(
            [request for one in further for request in one.requests], now_s
        )
        return [*commands, *(self._answer(done) if done else ())]

    def _answer(self, requests: list[Request]) -> list[Command]:
        """Answer requests at the plans they have run, and free what is kept for them."""
        answer, count = Answer(requests=tuple(requests)), count_examples(requests)
        self.in_system -= count
        self.seen.answered(count)
        if self.admission is not None:
            self.admission.leave(requests, self.seen.now_s)
        if self._listener is not None:
            self._listener.answered(answer.requests, self.seen.now_s)
        if self._cancelled:
            self._cancelled.difference_update(ids_of(requests))
        return [answer, *(forget(GATEWAY, requests) if self._escalation.models else ())]

    def _drop(
        self, requests: tuple[Request, ...], reason: DropReason, detail: str = "", holder: int = GATEWAY
    ) -> list[Command]:
        """Give up requests; the server that holds their activations, if any, may free them."""
        if self._escalation.models and reason not in (DropReason.CANCELLED, DropReason.DEADLINE_PASSED):
            done, rest = with_answer(requests)
            if done:
                dropped = self._drop(tuple(rest), reason, detail, holder) if rest else []
                return [*self._answer(done), *dropped]
        self.in_system -= count_examples(requests)
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
        self.speeds.lose(server)
        return [*commands, *self._restart(lost)]

    def _restart(self, requests: Sequence[Request]) -> list[Command]:
        """Queue requests again from their input, in front of all others; answer those that have an answer."""
        done, rest = with_answer(requests)
        again = [request.restarted() for request in rest]
        if self.admission is not None:
            self.admission.wait(again)
        self._wait(again, GATEWAY, first=True)
        return self._answer(done) if done else []


WAITS = "up, but it waits for a core: this machine is full"


class Health(Struct, frozen=True, kw_only=True):
    """The state of each server in words (up, down, or given up and why), and why none is up if none is."""

    servers: dict[str, str]
    trouble: str = ""


def health_of(gateway: Gateway, waiting: Collection[int] = ()) -> Health:
    """Return the health of a gateway's servers, of which these wait for a core."""
    given_up, trouble = gateway.given_up, ""
    if not gateway.seen.alive.any():
        reasons = "; ".join(given_up.values())
        trouble = "no server is up at the moment; they are being started again"
        if gateway.hopeless:
            trouble = (
                f"no server is left: {reasons}; find the cause in the log (they are tried again now and then)"
            )
        elif given_up:
            trouble = f"no server is up at the moment; some are being started again, but {reasons}"
    up = {index: WAITS if index in waiting else "up" for index in gateway.seen.alive_ids}
    servers = {
        name: up.get(index) or given_up.get(index, "down") for index, name in enumerate(gateway.cluster.names)
    }
    return Health(servers=servers, trouble=trouble)
