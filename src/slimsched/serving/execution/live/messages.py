"""What gateway and servers say to each other.

Where a message says just what a machine commands or is told, it is that command or event itself.
"""

from msgspec import Struct

from slimsched.serving.domain.block import Block
from slimsched.serving.execution.live.shared_tensor import TensorFacts
from slimsched.serving.routing.commands import Forget, RecallRequests
from slimsched.serving.routing.events import BlockDropped, InputLost, SegmentFinished, TelemetryReceived


class TakeBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: run this block; its inputs come along, or lie at the server at `peer`.

    `inputs` holds the bytes of each input tensor, one row per request.
    """

    block: Block
    inputs: list[bytes] = []
    peer: str = ""


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: stop once nothing is queued or running."""


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: warmed up and listening."""

    server: int
    pid: int


class BatchDone(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: what the gateway's machine shall be told, and the outputs of a complete plan."""

    finished: SegmentFinished
    outputs: list[bytes] = []


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: hand over these requests' activations."""

    requests: list[int]


class SharedTensor(Struct, frozen=True, kw_only=True):
    """A tensor in the shared-memory file `name`, or on the device under `handle`."""

    name: str = ""
    facts: TensorFacts | None = None
    handle: bytes = b""


class Fetched(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: the tensors that were asked for; none when they are not there."""

    tensors: list[SharedTensor] = []


ToServer = TakeBlock | Forget | RecallRequests | Drain
ToGateway = Ready | BatchDone | BlockDropped | InputLost | TelemetryReceived
