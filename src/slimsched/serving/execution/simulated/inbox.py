"""The inbox of a simulated gateway whose work takes time: events wait here until it is free.

The gateway handles one event after another, as the one process does that it runs in. An event that comes at
t is done at max(t, free) + its cost, and its commands are carried out then. Requests wait in their stream:
all that have come by the time the gateway is free are one event, as live, where one round of the event loop
takes all that has come.
"""

from collections import deque
from collections.abc import Callable
from math import inf

from slimsched.core.clock import Timeline
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.messages import Event, GatewayCost, RequestsArrived
from slimsched.serving.workload.load import RequestStream


class Inbox:
    """Hands events to a gateway in the order in which they come, each when the last is done.

    `take` takes all requests from the stream that have arrived by now; `tell` lets the gateway handle an
    event.
    """

    def __init__(
        self,
        cost: GatewayCost,
        timeline: Timeline,
        stream: RequestStream,
        take: Callable[[], RequestsArrived],
        tell: Callable[[Event], None],
    ) -> None:
        self._cost, self._timeline, self._stream = cost, timeline, stream
        self._take, self._tell = take, tell
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
            event: Event = self._take()
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
