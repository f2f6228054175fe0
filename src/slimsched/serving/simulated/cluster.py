"""The simulated cluster: the same gateway and schedulers as live, with simulated devices and links.

The driver's loop is the live one's: handle an event, let observers see it, carry out the commands. Commands
become future events: a block travels over the network and arrives, a batch takes the time its profile says,
telemetry reaches the gateway late, and servers die and return on a timeline. A gateway whose work costs time
has an inbox, where events wait for it. This module makes no decisions.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import assert_never

from slimsched.core.clock import Timeline, Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.serving.domain.cluster import GATEWAY, GATEWAY_NAME, Cluster, Fault, ServerSnapshot, life_name
from slimsched.serving.domain.profile import ALONE
from slimsched.serving.domain.request import Block, Request
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import (
    Answer,
    BlockDropped,
    Command,
    Drop,
    Event,
    Forget,
    GatewayCost,
    InputLost,
    RecallRequests,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerLeaving,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.routers import autoscaler
from slimsched.serving.routers.autoscaler import load_of
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.server import SimulatedServer
from slimsched.serving.workload.load import RequestStream


class Inbox:
    """Hands events to a gateway whose work takes time, in the order in which they come.

    The gateway handles one event after another, as the one process does that it runs in. An event that comes
    at t is done at max(t, free) + its cost, and its commands are carried out then. Requests wait in their
    stream: all that have come by the time the gateway is free are one event, as live, where one round of the
    event loop takes all that has come. `tell` lets the gateway handle an event.
    """

    def __init__(
        self,
        cost: GatewayCost,
        timeline: Timeline,
        stream: RequestStream,
        tell: Callable[[Event], None],
    ) -> None:
        self._cost, self._timeline, self._stream, self._tell = cost, timeline, stream, tell
        self._events: deque[tuple[float, Event]] = deque()  # when each came, and what it is
        self._is_busy = False
        self._untold: Event | None = None  # what the gateway is busy with and has not decided
        self._look_s = inf  # when the inbox looks for requests
        self._look_out()

    @property
    def waiting(self) -> list[Event]:
        """The events that the gateway has not begun with, without arrivals."""
        return [event for _, event in self._events]

    @property
    def has_requests(self) -> bool:
        """Whether requests have arrived that the gateway has not seen."""
        return isinstance(self._untold, RequestsArrived) or self._stream.next_s() <= self._timeline.now_s

    def take_requests(self) -> tuple[Request, ...]:
        """Take the requests that have arrived and that the gateway has not seen."""
        begun = self._untold.requests if isinstance(self._untold, RequestsArrived) else ()
        return (*begun, *self._stream.take_until(self._timeline.now_s))

    def add(self, event: Event) -> None:
        """Take in an event that has come now; the gateway begins with it at once if it is free."""
        self._events.append((self._timeline.now_s, event))
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        """Let the gateway begin with what came first, or wait for the next request."""
        now_s, events = self._timeline.now_s, self._events
        if self._stream.next_s() <= (events[0][0] if events else now_s):
            event: Event = RequestsArrived(requests=self._stream.take_until(now_s))
        elif events:
            event = events.popleft()[1]
        else:
            self._look_out()
            return
        self._is_busy = True
        self._untold = event
        self._timeline.at(now_s + self._cost.of(event), self._finish, event)

    def _finish(self, event: Event) -> None:
        """The gateway is done with an event: carry out what it decided, and go on with the next."""
        self._untold = None
        self._tell(event)
        self._is_busy = False
        self._begin()

    def _look_out(self) -> None:
        """Look again when the next request arrives."""
        next_s = self._stream.next_s()
        if next_s < inf and next_s != self._look_s:
            self._look_s = next_s
            self._timeline.at(next_s, self._look)

    def _look(self, _: None) -> None:
        if not self._is_busy:
            self._begin()


class SimulatedNetwork:
    """A star: each place has one link, equally fast both ways, that serves transfers one after another."""

    def __init__(self, cluster: Cluster) -> None:
        places = [GATEWAY, *range(len(cluster))]
        self._links = {place: cluster.link_of(place) for place in places}
        self._slowdown = dict.fromkeys(places, 1.0)
        self._out_free_s = dict.fromkeys(places, 0.0)
        self._in_free_s = dict.fromkeys(places, 0.0)

    def send(self, source: int, target: int, size_bytes: float, now_s: float) -> float:
        """Queue a transfer at the sender's link, then at the receiver's; return when the last byte arrives.

        The receiver takes bytes in while they are sent, so on idle links the slower one sets the pace.
        """
        if source == target:
            return now_s
        out, into = self._links[source], self._links[target]
        start_s = max(now_s, self._out_free_s[source])
        sent_s = start_s + size_bytes * self._slowdown[source] / out.bandwidth_bytes_per_s
        into_s = size_bytes * self._slowdown[target] / into.bandwidth_bytes_per_s
        taken_s = max(sent_s, max(start_s, self._in_free_s[target]) + into_s)
        self._out_free_s[source], self._in_free_s[target] = sent_s, taken_s
        return self.notify(source, target, taken_s)

    def slow(self, place: int, factor: float) -> None:
        """From now on, let transfers over a link take `factor` times as long as its bandwidth says."""
        self._slowdown[place] = factor

    def notify(self, source: int, target: int, now_s: float) -> float:
        """Return when a message arrives that is too small to queue."""
        return now_s + (self._links[source].latency_s + self._links[target].latency_s)


LOOK_S = 0.01
"""Time between two checks whether a leaving server is done."""

DRAIN_LIMIT_S = 3600.0
"""Simulated time after which draining gives up, because for example the last server never came back."""


class SimulatedCluster:
    """Carries out the commands of one gateway and its servers in simulated time."""

    def __init__(
        self,
        scenario: Scenario,
        gateway: Gateway,
        stream: RequestStream,
        *,
        seed: int = 0,
        observers: Sequence[Observer] = (),
    ) -> None:
        cluster, autoscale = scenario.cluster, scenario.autoscale
        self.timeline = Timeline()
        self._scenario, self._cluster, self._telemetry = scenario, cluster, scenario.telemetry
        self._gateway, self._stream, self._observers = gateway, stream, observers
        self._costs = scenario.costs or [ALONE] * len(cluster)
        self._noises = scenario.noises(seed)
        self._network = SimulatedNetwork(cluster)
        cost = gateway.options.cost
        self._inbox = Inbox(cost, self.timeline, stream, self._tell) if cost else None
        self._hear = self._tell if self._inbox is None else self._inbox.add
        self._lives = [0] * len(cluster)  # how often each server has started
        self._leaving: set[int] = set()
        self._noticed_s = [0.0] * len(cluster)  # when the gateway hears of the last fault
        self._began_s, self._ran_s = [0.0] * len(cluster), [0.0] * len(cluster)  # this life, those before it
        at_first = len(cluster) if autoscale is None else autoscale.min
        self.servers = [self._boot(index) for index in range(at_first)]
        self.servers += [self._make(index, alive=False) for index in range(at_first, len(cluster))]
        for fault in scenario.faults:
            self.timeline.at(fault.at_s, self._fault, fault)
        self.timeline.at(self._telemetry.period_s, self._sample)
        if autoscale is not None:
            for server in self.servers[at_first:]:
                self._tell(ServerDown(server=server.index))
            self._start_s = autoscale.start_s
            self._scaling = autoscaler.Scaling(autoscale, self, lambda: load_of(gateway), observers)
            self.timeline.at(autoscaler.LOOK_S, self._scale)

    def run(self, until_s: float, *, drain: bool = False) -> float:
        """Run until `until_s`, or with `drain` until every request is answered; return the end time."""
        timeline, stream = self.timeline, self._stream
        limit_s = until_s + DRAIN_LIMIT_S
        arrival_s = stream.next_s() if self._inbox is None else inf  # an inbox looks by itself
        while (next_s := timeline.next_s()) <= limit_s:
            if next_s > until_s and arrival_s > until_s and not (drain and self._is_unfinished):
                break
            if arrival_s <= next_s:
                self._arrive(min(next_s, until_s))
                arrival_s = stream.next_s()
            else:
                timeline.advance()
        timeline.now_s = max(timeline.now_s, until_s)
        return timeline.now_s

    @property
    def _is_unfinished(self) -> bool:
        """Whether a request that has arrived is neither answered nor dropped."""
        return self._gateway.in_system > 0 or (self._inbox is not None and self._inbox.has_requests)

    def _report(self, event: SegmentFinished | BlockDropped) -> None:
        """Send a server's report to the gateway; after the last segment, the logits go with it."""
        if isinstance(event, SegmentFinished):
            block = event.blocks[0]
            model = self._cluster.models[block.key.model]
            if model.tree.is_plan((*block.requests[0].path, event.choice, *event.ahead)):
                size = event.size * model.answer_bytes
                at_s = self._network.send(event.server, GATEWAY, size, self.timeline.now_s)
                self.timeline.at(at_s, self._hear, event)
                return
        self._notify(event.server, event)

    def _notify(self, server: int, event: Event) -> None:
        """Let the gateway hear a short message of a server."""
        at_s = self._network.notify(server, GATEWAY, self.timeline.now_s)
        self.timeline.at(at_s, self._hear, event)

    def _arrive(self, until_s: float) -> None:
        """Hand over one request, or all that arrive before anything else happens."""
        requests = self._stream.take_until(until_s) if self._gateway.awaits_step else self._stream.take_one()
        self.timeline.now_s = requests[-1].arrival_s
        self._tell(RequestsArrived(requests=requests))

    def _tell(self, event: Event) -> None:
        """Give the gateway one event, show observers what it decided, then carry that out."""
        now_s = self.timeline.now_s
        commands = self._gateway.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, GATEWAY_NAME, event, commands)
        for command in commands:
            self._carry_out(command, now_s)

    def _carry_out(self, command: Command, now_s: float) -> None:
        match command:
            case SendBlock(server=server, block=block, source=source):
                self._send(server, block, source, now_s)
            case RecallRequests(server=server, requests=requests):
                at_s = self._network.notify(GATEWAY, server, now_s)
                self.timeline.at(at_s, self.servers[server].recall, requests)
            case WakeAt(at_s=at_s):
                self.timeline.at(at_s, self._hear, Wake())
            case Answer() | Drop() | Forget():
                pass  # meters count what is answered and dropped; simulated activations take no memory
            case _:
                assert_never(command)

    def _send(self, server: int, block: Block, source: int, now_s: float) -> None:
        """Move a block's inputs to its server, from the gateway or directly from the server that has them."""
        target = self.servers[server]
        if source == server:
            arrival_s = self._network.notify(GATEWAY, server, now_s)
            self.timeline.at(arrival_s, self._deliver, (target, block, None))
            return
        if source != GATEWAY:
            now_s = self._network.notify(GATEWAY, source, now_s)
        size = self._cluster.input_bytes(block.key, source) * block.examples
        arrival_s = self._network.send(source, server, size, now_s)
        holder = None if source == GATEWAY else self.servers[source]
        self.timeline.at(arrival_s, self._deliver, (target, block, holder))

    def _deliver(self, arrival: tuple[SimulatedServer, Block, SimulatedServer | None]) -> None:
        """Let a block arrive, unless the server that sent its inputs has died meanwhile."""
        target, block, holder = arrival
        if target.alive:
            if holder is None or holder.alive:
                target.receive(block)
            else:
                self._notify(target.index, InputLost(server=target.index, block=block))

    def _sample(self, _: None) -> None:
        """Let all servers read their sensors; the readings reach the gateway later."""
        telemetry, now_s = self._telemetry, self.timeline.now_s
        for server in self.servers:
            if server.alive:
                reading = (server, server.sample())
                self.timeline.at(now_s + telemetry.delay_s, self._read, reading)
        self.timeline.at(now_s + telemetry.period_s, self._sample)

    def _read(self, reading: tuple[SimulatedServer, ServerSnapshot]) -> None:
        server, snapshot = reading
        if server.alive:
            self._hear(TelemetryReceived(server=server.index, snapshot=snapshot))

    def _fault(self, fault: Fault) -> None:
        index = self._cluster.names.index(fault.server)
        server = self.servers[index]
        match fault.kind:
            case "kill" | "hang":
                if server.alive:
                    self._end(server)
                    telemetry = self._telemetry
                    after_s = telemetry.detection_s if fault.kind == "kill" else telemetry.silence_s
                    self._notice(index, after_s, ServerDown(server=index))
            case "leave":
                self.drain_server(index)
            case "restore":
                if not server.alive:
                    self.servers[index] = self._boot(index)
                    self._notice(index, self._telemetry.detection_s, ServerUp(server=index))
            case "slow":
                server.slow(fault.slowdown)
            case "slow-link":
                self._network.slow(index, fault.slowdown)
            case _:
                assert_never(fault.kind)

    def _notice(self, index: int, after_s: float, event: ServerUp | ServerDown) -> None:
        """Let the gateway hear of a fault after this time, and not before earlier faults of the server."""
        self._noticed_s[index] = max(self._noticed_s[index], self.timeline.now_s + after_s)
        self.timeline.at(self._noticed_s[index], self._hear, event)

    def _scale(self, _: None) -> None:
        """Let the autoscaler look at the load, and schedule the next look."""
        self._scaling.look(self.timeline.now_s)
        self.timeline.at(self.timeline.now_s + autoscaler.LOOK_S, self._scale)

    def is_up(self, server: int) -> bool:
        """Whether the gateway sends work to a server."""
        return bool(self._gateway.seen.alive[server])

    def start_server(self, server: int) -> bool:
        """Begin to start a server; return False while its last life has not ended."""
        if self.servers[server].alive:
            return False
        self.timeline.at(self.timeline.now_s + self._start_s, self._start, server)
        return True

    def _start(self, index: int) -> None:
        """Start a server whose process is ready; it serves once its resident instances are loaded."""
        if self.servers[index].alive:
            return
        server = self.servers[index] = self._boot(index)
        at_s = self.timeline.now_s + server.residents_load_s()
        self.timeline.at(at_s, self._serve, server)

    def _serve(self, server: SimulatedServer) -> None:
        if server.alive:
            self._notify(server.index, ServerUp(server=server.index))

    def drain_server(self, server: int) -> None:
        """Let a server finish its work, and stop it when nobody needs its activations."""
        leaver = self.servers[server]
        if leaver.alive and server not in self._leaving:
            self._leaving.add(server)
            at_s = self._network.notify(server, GATEWAY, self.timeline.now_s)
            self.timeline.at(at_s, self._hear, ServerLeaving(server=server))
            self.timeline.at(at_s + LOOK_S, self._look_whether_done, leaver)

    def _look_whether_done(self, server: SimulatedServer) -> None:
        """Stop a leaving server once it has no work and nobody needs its activations."""
        if not server.alive:
            self._leaving.discard(server.index)  # killed meanwhile
        elif server.scheduler.is_busy or self._gateway.holds_for(server.index):
            self.timeline.at(self.timeline.now_s + LOOK_S, self._look_whether_done, server)
        else:
            self._leaving.discard(server.index)
            self._end(server)
            self._notify(server.index, ServerDown(server=server.index))

    def unheard(self) -> list[SegmentFinished]:
        """List the reports of finished batches that are still on their way to the gateway."""
        waiting = [] if self._inbox is None else self._inbox.waiting
        return [one for one in [*waiting, *self.timeline.to_come()] if isinstance(one, SegmentFinished)]

    def take_unseen(self) -> tuple[Request, ...]:
        """At the end of a run, take the requests that have arrived and that the gateway has not seen."""
        return () if self._inbox is None else self._inbox.take_requests()

    def ran_s(self, server: int) -> float:
        """Return how long a server has run, over all its lives."""
        now_s = self.timeline.now_s
        return self._ran_s[server] + (now_s - self._began_s[server] if self.servers[server].alive else 0.0)

    def _boot(self, index: int) -> SimulatedServer:
        """Start a fresh server; each life has its own name in the log. The first servers are warm."""
        self._lives[index] += 1
        self._began_s[index] = now_s = self.timeline.now_s
        server = self._make(index)
        server.device.sample(now_s)
        server.start(warm=self._lives[index] == 1 and now_s == 0.0)
        return server

    def _end(self, server: SimulatedServer) -> None:
        """End a server; everything it had is lost."""
        server.alive = False
        self._ran_s[server.index] += self.timeline.now_s - self._began_s[server.index]

    def _make(self, index: int, *, alive: bool = True) -> SimulatedServer:
        server = SimulatedServer(
            index=index,
            name=life_name(self._cluster.names[index], self._lives[index]),
            profile=self._cluster.profiles[index],
            models=self._cluster.models,
            cost=self._costs[index],
            noise=self._noises[index],
            options=self._scenario.schedulers[index],
            timeline=self.timeline,
            report=self._report,
            observers=self._observers,
        )
        server.alive = alive
        return server
