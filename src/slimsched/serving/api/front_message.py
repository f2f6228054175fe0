"""Messages between the gateway and its front processes, which read requests and write answers for it."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from slimsched.serving.api.limits import Limits
from slimsched.serving.api.shared_region import RegionEntry
from slimsched.serving.api.tally import Counted
from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.domain.request import ANY_TERMS, Terms
from slimsched.serving.live.calls import Receipt
from slimsched.serving.live.wire import InputPiece, Ping, Pong


class FrontReady(Struct, frozen=True, kw_only=True, tag=True):
    """Front to gateway: here I am; `life` and `secret` prove who it is."""

    front: int
    life: int
    secret: str


class FrontListens(Struct, frozen=True, kw_only=True, tag=True):
    """Front to gateway: clients can connect, at these ports."""

    http_port: int
    grpc_port: int


class FrontCalls(Struct, frozen=True, array_like=True, gc=False):
    """Calls to one model on the same terms: how many examples each has, and their inputs one after the other.

    `inputs` holds the bytes of each input tensor; large inputs lie in the arena instead, in `pieces`.
    """

    number: int
    model: int
    counts: Sequence[int]
    arrived_s: float  # of the first, on the host's monotonic clock
    inputs: Sequence[memoryview] = ()
    pieces: Sequence[InputPiece] = ()
    terms: Terms = ANY_TERMS


class Left(NamedTuple):
    """Examples from `start` to `end` of some calls, whose client has left."""

    number: int
    start: int
    end: int


class Calls(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Front to gateway: new calls, calls whose clients have left, and examples refused here, by model.

    The gateway says when it has taken them. Calls that come meanwhile wait at the front and go together.
    """

    calls: Sequence[FrontCalls] = ()
    left: Sequence[Left] = ()
    refused: Sequence[tuple[int, int]] = ()


class FrontAnswer(Struct, frozen=True, array_like=True):
    """The answer to some examples, from `start` on: each output tensor, and the receipts."""

    number: int
    start: int
    outputs: Sequence[memoryview]
    receipts: Sequence[Receipt]


class FrontRefusal(Struct, frozen=True, array_like=True):
    """Why some examples have no answer; without a kind, the model was replaced: read the calls again."""

    number: int
    start: int
    end: int
    kind: str
    why: str
    retry_after_s: float | None


class Answers(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Gateway to front: answers and refusals; `taken`: the calls sent last have been taken.

    For `hold_s` nothing can begin that has not, so new calls may gather for this long.
    """

    answers: Sequence[FrontAnswer] = ()
    refusals: Sequence[FrontRefusal] = ()
    taken: bool = False
    hold_s: float = 0.0


class Models(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to front: the models that are served from now on, and the limits of this front.

    `accuracies` holds the accuracy of each plan, by model.
    """

    entries: list[ModelEntry]
    accuracies: list[list[float]]
    limits: Limits


class Regions(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to front: the regions of shared memory that are registered from now on."""

    change: int
    entries: list[RegionEntry]


class RegionsKnown(Struct, frozen=True, kw_only=True, tag=True):
    """Front to gateway: calls that I read from now on see this change of the regions."""

    change: int


class FrontDrain(Struct, frozen=True, kw_only=True, tag=True):
    """Gateway to front: take no more requests, answer those under way, then end."""


ToFront = Models | Answers | Regions | FrontDrain | Ping
FromFront = FrontReady | FrontListens | Calls | Counted | RegionsKnown | Pong
