"""What gateway and servers say to each other.

Where a message says just what a machine commands or is told, it is that command or event itself.
"""

from msgspec import Struct

from slimsched.serving.domain.block import Block
from slimsched.serving.routing.commands import Forget, RecallRequests
from slimsched.serving.routing.events import BlockDropped, InputLost, SegmentFinished, TelemetryReceived


class TakeBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: run this block; its inputs are `images`, or lie at the server at `peer`."""

    block: Block
    images: bytes = b""
    peer: str = ""


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: stop once nothing is queued or running."""


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: warmed up and listening."""

    server: int
    pid: int


class BatchDone(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: what the gateway's machine shall be told, and the logits after the last segment."""

    finished: SegmentFinished
    logits: bytes = b""


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: hand over these requests' activations."""

    requests: list[int]


class Fetched(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: they lie in this shared-memory file, on the device under `handle`, or nowhere."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    handle: bytes = b""


ToServer = TakeBlock | Forget | RecallRequests | Drain
ToGateway = Ready | BatchDone | BlockDropped | InputLost | TelemetryReceived
