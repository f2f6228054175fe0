"""The events that the gateway is told."""

from msgspec import Struct

from slimsched.core.clock import Wake
from slimsched.serving.domain.cluster import ServerSnapshot
from slimsched.serving.domain.model import ModelsChanged
from slimsched.serving.domain.request import Block, DropReason, Key, Request, RequestsCancelled, onward
from slimsched.serving.routing.goal import Goal


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
