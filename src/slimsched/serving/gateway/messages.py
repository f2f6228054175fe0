"""The events that the gateway is told, the commands that it gives, and the options that say how it works.

The names of events and commands are the tags in event logs: renaming one makes old logs unreadable.
"""

from typing import Literal

from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import Seconds
from slimsched.serving.domain.cluster import ServerSnapshot
from slimsched.serving.domain.model import ModelsChanged
from slimsched.serving.domain.request import Block, DropReason, Key, Request, RequestsCancelled, Why, onward
from slimsched.serving.gateway.goal import Goal


class SendBlock(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Send a block to a server; its inputs lie at `source` (-1: the gateway)."""

    server: int
    block: Block
    source: int
    reason: str
    why: Why | None = None


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """Answer these requests; each holds the choices it ran at."""

    requests: tuple[Request, ...]


class Drop(Struct, frozen=True, kw_only=True, tag=True):
    """Give up these requests, for this reason."""

    requests: tuple[Request, ...]
    reason: DropReason
    detail: str = ""


class RecallRequests(Struct, frozen=True, kw_only=True, tag=True):
    """Tell a server not to begin these requests: nobody waits for them any more."""

    server: int
    requests: tuple[int, ...]


class Forget(Struct, frozen=True, kw_only=True, tag=True):
    """Tell a server to free the activations of these requests: nobody will ask for them."""

    server: int
    requests: tuple[int, ...]


Command = SendBlock | Answer | Drop | RecallRequests | Forget | WakeAt


class RequestsArrived(Struct, frozen=True, kw_only=True, tag=True):
    """Requests have come in."""

    requests: tuple[Request, ...]


class RequestsRefused(Struct, frozen=True, kw_only=True, tag=True):
    """The door has refused requests because the gateway's own rule says so: how many of each model."""

    counts: tuple[int, ...]


class SegmentFinished(Struct, frozen=True, kw_only=True, tag=True):
    """A server has run one segment of these blocks at `choice`, and further segments at `ahead`.

    The blocks (or parts of them) ran as one batch of `size` examples. It ended at `finished_s`, took `busy_s`
    on the device and drew `energy_j` above idle. `queue_s` is how long each block waited at the server.
    `legs_s` is how long each segment ran, where that was measured. Where a plan is complete and the model
    says how sure it is, `confidence` and `top` (the class named) hold one value per example, block by block.
    """

    server: int
    choice: int
    blocks: tuple[Block, ...]
    ahead: tuple[int, ...] = ()
    size: int = 0
    finished_s: float = 0.0
    busy_s: float = 0.0
    energy_j: float = 0.0
    queue_s: tuple[float, ...] = ()
    legs_s: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()
    top: tuple[int, ...] = ()

    @property
    def examples(self) -> int:
        """Examples in these blocks. The batch may hold more, from another gateway."""
        return sum([request.count for block in self.blocks for request in block.requests])

    @property
    def key(self) -> Key:
        """The key the batch ran at; its blocks may have asked for a narrower choice or for more segments."""
        asked = self.blocks[0].key
        return onward(asked.at(self.choice), self.ahead)


class BlockDropped(Struct, frozen=True, kw_only=True, tag=True):
    """A server has given up a block, or part of it."""

    server: int
    block: Block
    reason: DropReason
    detail: str = ""


class InputLost(Struct, frozen=True, kw_only=True, tag=True):
    """A block reached its server, but its inputs did not: the server that held them is gone."""

    server: int
    block: Block


class TelemetryReceived(Struct, frozen=True, kw_only=True, tag=True):
    """A server's snapshot has reached the gateway."""

    server: int
    snapshot: ServerSnapshot


class ServerDown(Struct, frozen=True, kw_only=True, tag=True):
    """A server was found dead; what it held is lost."""

    server: int


class ServerLeaving(Struct, frozen=True, kw_only=True, tag=True):
    """A server takes no more work; it finishes what it has and keeps activations until they are fetched."""

    server: int


class ServerUp(Struct, frozen=True, kw_only=True, tag=True):
    """A server is ready, for the first time or again."""

    server: int


class ServerGivenUp(Struct, frozen=True, kw_only=True, tag=True):
    """A server keeps failing to start, so nobody should wait for it; `left` others run or start."""

    server: int
    reason: str
    left: int


class GoalChanged(Struct, frozen=True, kw_only=True, tag=True):
    """The operator has set another goal; requests under way follow it from their next segment on."""

    goal: Goal


Event = (
    RequestsArrived
    | RequestsRefused
    | RequestsCancelled
    | SegmentFinished
    | BlockDropped
    | InputLost
    | TelemetryReceived
    | ServerDown
    | ServerLeaving
    | ServerUp
    | ServerGivenUp
    | GoalChanged
    | ModelsChanged
    | Wake
)


class GatewayCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gateway's own work: an event takes event_s + request_s × the requests in it.

    Every event counts: arrivals, reports of batches, telemetry and wake-ups. Requests count in an arrival and
    in the report of a batch, so a request counts once more for each segment that the gateway routes. `slim
    validate` measures both.
    """

    event_s: Seconds = 0.0
    request_s: Seconds = 0.0

    def __bool__(self) -> bool:
        return self.event_s > 0.0 or self.request_s > 0.0

    def of(self, event: Event) -> float:
        """Return how long the gateway is busy with an event."""
        return self.event_s + self.request_s * requests_in(event)


def requests_in(event: object) -> int:
    """Return how many requests an event brings to the gateway."""
    if isinstance(event, RequestsArrived):
        return len(event.requests)
    if isinstance(event, SegmentFinished):
        return sum([len(block.requests) for block in event.blocks])
    return 0


SERVED_QUEUE_S = 10.0
"""`queue_s` where clients are served, unless they are told otherwise."""


class GatewayOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the router is asked, which requests are turned away, and what the gateway's work costs."""

    step_s: Seconds = 0.002  # time between scheduling steps; 0: at each event
    plan: Literal["segment", "network"] = "segment"  # network: all segments are planned at once
    early_drop: bool = False  # give up requests whose deadline has passed
    queue_s: Seconds = 0.0  # with early_drop: longest wait at arrival of those without a deadline; 0: any
    event_s: Seconds = 0.0  # in simulation: how long the gateway is busy with an event
    request_s: Seconds = 0.0  # in simulation: and with each request in an arrival or in the report of a batch

    @property
    def cost(self) -> GatewayCost:
        """What the gateway's own work costs; only the simulator asks."""
        return GatewayCost(event_s=self.event_s, request_s=self.request_s)
