"""What the gateway is told."""

from msgspec import Struct

from slimsched.kernel.wake import Wake
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.request import Request
from slimsched.serving.domain.snapshot import ServerSnapshot


class RequestsArrived(Struct, frozen=True, kw_only=True, tag=True):
    """Requests have come in."""

    requests: tuple[Request, ...]


class RequestsCancelled(Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for these requests any more."""

    requests: tuple[int, ...]


class SegmentFinished(Struct, frozen=True, kw_only=True, tag=True):
    """A server has run a segment of these blocks (or parts of them) at a choice, and further ones at `ahead`.

    `legs_s` is how long each of several segments ran, where that was measured.
    """

    server: int
    choice: int
    blocks: tuple[Block, ...]
    ahead: tuple[int, ...] = ()
    legs_s: tuple[float, ...] = ()


class BlockDropped(Struct, frozen=True, kw_only=True, tag=True):
    """A server has given a block (or part of it) up."""

    server: int
    block: Block
    reason: str


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


Event = (
    RequestsArrived
    | RequestsCancelled
    | SegmentFinished
    | BlockDropped
    | InputLost
    | TelemetryReceived
    | ServerDown
    | ServerLeaving
    | ServerUp
    | Wake
)
