"""The gateway: holds the central FIFO, asks the router, tracks blocks at servers and restarts lost requests.

At each scheduling step the gateway asks the router about the head of the queue, until the queue is empty or
the router says wait. When a segment has run, its request goes to the end of the queue for the next segment.
When a server dies, every request it held begins again from its input, and its late messages are ignored.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import GATEWAY, Cluster
from slimsched.serving.domain.model import ModelsChanged
from slimsched.serving.domain.request import (
    Block,
    DropReason,
    Key,
    Request,
    RequestsCancelled,
    block_of,
    count_examples,
    ids_of,
    onward,
    split_by,
    with_answer,
)
from slimsched.serving.routing.admission import Admission
from slimsched.serving.routing.commands import Answer, Command, Drop, SendBlock
from slimsched.serving.routing.escalation import Escalation
from slimsched.serving.routing.events import (
    BlockDropped,
    Event,
    GoalChanged,
    InputLost,
    RequestsArrived,
    RequestsRefused,
    SegmentFinished,
    ServerDown,
    ServerGivenUp,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.routing.fifo import PLAIN, Fifo, Kind, Place, by_kind
from slimsched.serving.routing.forgetting import forget, forget_kept
from slimsched.serving.routing.gateway_options import GatewayOptions
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.growth import Growth
from slimsched.serving.routing.learned_cost import ServiceCosts
from slimsched.serving.routing.network_planner import NetworkPlanner
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.promises import Promises
from slimsched.serving.routing.router import AnswerListener, GoalFollower, Route, Router
from slimsched.serving.routing.sent_block import SentBlock
from slimsched.serving.routing.sent_blocks import SentBlocks
from slimsched.serving.routing.terms import choice_within_terms

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
