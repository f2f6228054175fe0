"""What gateway and servers say to each other."""

from msgspec import Struct

from slimsched.serving.domain.block import Block
from slimsched.serving.domain.snapshot import ServerSnapshot


class TakeBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: run this block; its inputs are `images`, or lie at the server at `peer`."""

    block: Block
    images: bytes = b""
    peer: str = ""


class Forget(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: nobody will ask for these requests' activations."""

    requests: list[int]


class Recall(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: nobody waits for these requests; do not begin them."""

    requests: tuple[int, ...]


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to server: stop once nothing is queued or running."""


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: warmed up and listening."""

    server: int
    pid: int


class BatchDone(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: these blocks have run, each after waiting so long; logits after the last segment.

    They ran on through further segments at the widths `ahead`; `legs_s` is then how long each one took.
    """

    width: float
    blocks: list[Block]
    queue_s: list[float]
    busy_s: float
    energy_j: float
    logits: bytes = b""
    ahead: tuple[float, ...] = ()
    legs_s: tuple[float, ...] = ()


class BlockGone(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: given up, and why."""

    block: Block
    reason: str


class InputMissing(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: the server that held this block's inputs has none of them."""

    block: Block


class Sampled(Struct, frozen=True, kw_only=True, tag=True):
    """Server to gateway: telemetry, with where the power figure comes from."""

    snapshot: ServerSnapshot
    power_source: str
    waiting: dict[str, str]


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: hand over these requests' activations."""

    requests: list[int]


class Fetched(Struct, frozen=True, kw_only=True, tag=True):
    """Server to server: they lie in this shared-memory file, on the device under `handle`, or nowhere."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    handle: bytes = b""


ToServer = TakeBlock | Forget | Recall | Drain
ToGateway = Ready | BatchDone | BlockGone | InputMissing | Sampled
