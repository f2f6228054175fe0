"""Messages between gateway and servers.

Commands and events of the gateway's and servers' state machines are also sent as they are.
"""

from collections.abc import Sequence

from msgspec import Struct

from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.domain.profile import ProfileRecord
from slimsched.serving.domain.request import Block
from slimsched.serving.execution.live.tensor_facts import TensorFacts
from slimsched.serving.gateway.messages import (
    BlockDropped,
    Forget,
    InputLost,
    RecallRequests,
    SegmentFinished,
    TelemetryReceived,
)


class InputPiece(Struct, frozen=True, array_like=True):
    """Rows of some requests in the input arena: where each input tensor begins."""

    rows: int
    offsets: Sequence[int]


class TakeBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: run this block; its inputs are included, or are at the server at `peer`.

    `inputs` holds the bytes of each input tensor, one row per request. Large inputs lie in the input arena
    instead, and `pieces` says where.
    """

    block: Block
    inputs: list[bytes] = []
    pieces: list[InputPiece] = []
    peer: str = ""


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: stop once nothing is queued or running."""


class Ping(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: answer with a `Pong`."""


class Pong(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: alive."""


class HostModel(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: load one more model and say when it is warm; the profile is that of this device."""

    entry: ModelEntry
    profile: ProfileRecord


class UnhostModel(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: nobody asks for this model any more; give its memory back."""

    number: int


class ModelHosted(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: a model is loaded and warm, or why it cannot be."""

    server: int
    number: int
    error: str = ""


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: warmed up and listening, with these models; `life` and `secret` prove who it is."""

    server: int
    pid: int
    models: list[int] = []
    life: int = 0
    secret: str = ""


class BatchDone(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: the event for the gateway, and the outputs if the plan is complete."""

    finished: SegmentFinished
    outputs: list[bytes] = []


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: hand over these requests' activations; `secret` is the cluster's."""

    requests: list[int]
    secret: str = ""


class SharedTensor(Struct, frozen=True, kw_only=True):
    """A tensor in the shared-memory file `name`, or on the device under `handle`."""

    name: str = ""
    facts: TensorFacts | None = None
    handle: bytes = b""


class Fetched(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: the requested tensors; empty if they are not there."""

    tensors: list[SharedTensor] = []


ToServer = TakeBlock | Forget | RecallRequests | Drain | Ping | HostModel | UnhostModel
ToGateway = Ready | Pong | BatchDone | BlockDropped | InputLost | TelemetryReceived | ModelHosted
