"""A parcel: the examples of one call, the caller that waits for them, and their receipts so far."""

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.kernel.errors import SlimError
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.domain.trail import Trail
from slimsched.serving.domain.why import Why
from slimsched.serving.execution.live.input_arena import LEAST_BYTES, InputArena
from slimsched.serving.execution.live.messages import InputPiece

Arrays = tuple[NDArray[Any], ...]
"""The outputs of several examples, in the order of the model's spec, one row per example."""


class DroppedError(SlimError):
    """A request was dropped; `reason` says why, and the message adds details."""

    def __init__(self, reason: DropReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


class Call(NamedTuple):
    """One example of a known set: its inputs, its position in the set, and the model to run."""

    inputs: Sequence[bytes]
    example: int = -1
    model: int = 0


class Receipt(Struct, kw_only=True, array_like=True):
    """The record of some examples that went the same way: choices and servers by segment, time and energy.

    Each of them took this time and this energy. `trail` is there where answers are judged: how sure the model
    was, and which plans ran before.
    """

    examples: int = 1
    path: tuple[int, ...] = ()
    servers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    queue_s: float = 0.0
    compute_s: float = 0.0
    energy_j: float = 0.0
    energy_source: str = ""
    latency_s: float = 0.0
    trail: Trail | None = None
    why: Why | None = None  # the numbers behind the last decision
    runner_up: str = ""  # the server that was second best then
    request: int = -1  # number of the call's first request in the log


class Answered(Struct, frozen=True, kw_only=True):
    """The outputs, and the receipts of neighbours that went the same way."""

    outputs: Arrays
    receipts: Sequence[Receipt]


class Waiter(Protocol):
    """Whoever waits for the answer to a call: a future, or a front process."""

    def done(self) -> bool:
        """Whether it has been told, or waits no more."""
        ...

    def set_result(self, answered: Answered, /) -> None:
        """Tell it the answer."""

    def set_exception(self, why: DroppedError, /) -> None:
        """Tell it why there is none."""

    def cancel(self) -> object:
        """It waits no more."""


class Parcel:
    """Examples with consecutive request ids; neighbours share a receipt while they stay together.

    `inputs` holds the bytes of each input tensor, one row per example.
    """

    def __init__(
        self,
        first: int,
        inputs: Sequence[memoryview],
        count: int,
        arrival_s: float,
        waiter: Waiter,
        model: int = 0,
        deadline_s: float = NEVER_S,
    ) -> None:
        self.model, self.deadline_s = model, deadline_s
        self.is_cancelled = False  # nobody waits for it any more, and the gateway need not be told
        self.first, self.count, self.arrival_s, self.waiter = first, count, arrival_s, waiter
        self.timer: asyncio.TimerHandle | None = None  # for its deadline
        self._inputs, self._left = inputs, count
        self._here = count
        self._offsets: Sequence[int] = ()
        self._release: Callable[[], None] | None = None
        self._receipts = [Receipt(examples=count, request=first)]
        self._outputs: Arrays | None = None

    def __await__(self) -> Generator[Any, None, Answered]:
        """Wait for the answer; raises if some of the examples were dropped."""
        return self.future.__await__()

    @property
    def future(self) -> "asyncio.Future[Answered]":
        """The future that waits for the answer, where it is one."""
        assert isinstance(self.waiter, asyncio.Future)
        return self.waiter

    @property
    def requests(self) -> range:
        """The request ids of the examples."""
        return range(self.first, self.first + self.count)

    def inputs(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes of some examples, by input tensor."""
        if end - start == self.count:
            return list(self._inputs)
        sizes = [len(raw) // self.count for raw in self._inputs]
        return [raw[start * size : end * size] for raw, size in zip(self._inputs, sizes, strict=True)]

    def lie_in(self, arena: InputArena) -> None:
        """Put large inputs where servers can read them, unless they are there already.

        What is put there is given back when the last example has left.
        """
        if sum(map(len, self._inputs)) < LEAST_BYTES:
            return
        offsets = [arena.offset(view) for view in self._inputs]
        if None in offsets:
            if (laid := arena.put(list(self._inputs))) is None:
                return
            offsets, self._release = [arena.offset(view) for view in laid], partial(arena.give_back, laid[0])
        self._offsets = [offset for offset in offsets if offset is not None]

    def lies_at(self, offsets: Sequence[int]) -> None:
        """Note where the inputs lie in the arena already; whoever put them there takes them away."""
        self._offsets = offsets

    def piece(self, start: int, end: int) -> InputPiece | None:
        """Say where some examples lie in the arena; None if they do not lie there."""
        if not self._offsets:
            return None
        sizes = [len(raw) // self.count for raw in self._inputs]
        offsets = [offset + start * size for offset, size in zip(self._offsets, sizes, strict=True)]
        return InputPiece(end - start, offsets)

    @property
    def has_parted(self) -> bool:
        """Whether some of its examples have been answered or dropped."""
        return self._here < self.count

    def left(self, count: int) -> None:
        """This many examples have been answered or dropped; after the last one, give the room back."""
        self._here -= count
        if not self._here and self._release is not None:
            self._release()

    def receipts(self, start: int, end: int) -> list[Receipt]:
        """Return the receipts of these examples alone."""
        if end - start == self.count and len(self._receipts) == 1:
            return self._receipts
        self._cut(start)
        self._cut(end)
        found, at = [], 0
        for receipt in self._receipts:
            if start <= at < end:
                found.append(receipt)
            at += receipt.examples
        return found

    def _cut(self, place: int) -> None:
        """Give the examples from a place on receipts of their own."""
        at = 0
        for number, receipt in enumerate(self._receipts):
            after = at + receipt.examples
            if at < place < after:
                rest = replace(receipt, examples=after - place)
                receipt.examples = place - at
                self._receipts.insert(number + 1, rest)
            if place <= after:
                return
            at = after

    def went(self, request: Request, now_s: float, energy_source: str) -> None:
        """Record which way some examples went."""
        start = request.id - self.first
        for receipt in self.receipts(start, start + request.count):
            receipt.path, receipt.trail, receipt.energy_source = request.path, request.trail, energy_source
            receipt.latency_s = now_s - self.arrival_s

    def put_outputs(self, start: int, outputs: Arrays) -> None:
        """Store the model's outputs for some examples; those of a later plan replace those before."""
        rows = len(outputs[0])
        if rows == self.count:
            self._outputs = outputs
            return
        if self._outputs is None:
            self._outputs = tuple(np.empty((self.count, *one.shape[1:]), one.dtype) for one in outputs)
        elif not self._outputs[0].flags.owndata:  # part of a server's message, which others may share
            self._outputs = tuple(one.copy() for one in self._outputs)
        for kept, one in zip(self._outputs, outputs, strict=True):
            kept[start : start + rows] = one

    def answered(self, count: int) -> None:
        """Count this many more examples as done; after the last one, wake the caller."""
        self._left -= count
        if not self._left and not self.waiter.done():
            assert self._outputs is not None
            self._stop_timer()
            self.waiter.set_result(Answered(outputs=self._outputs, receipts=self._receipts))

    def fail(self, why: DroppedError) -> bool:
        """Tell the caller that there is no answer; return whether it still waited for one."""
        if self.waiter.done():
            return False
        self._stop_timer()
        self.waiter.set_exception(why)
        return True

    def give_up(self) -> None:
        """The caller waits no more."""
        self._stop_timer()
        self.waiter.cancel()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def stretches(
    parcels: Mapping[int, Parcel], requests: Sequence[Request]
) -> Iterator[tuple[int, Parcel, int, int]]:
    """Yield runs of neighbours of one parcel: start among these examples, parcel, start and end in it."""
    row = 0
    for first, end in _neighbours(requests):
        while first < end:
            parcel = parcels.get(first)
            if parcel is None:  # answered or dropped before: a stale report
                row, first = row + 1, first + 1
                continue
            until = min(end, parcel.first + parcel.count)
            if parcel.has_parted:
                until = next((number for number in range(first, until) if number not in parcels), until)
            yield row, parcel, first - parcel.first, until - parcel.first
            row, first = row + until - first, until


def _neighbours(requests: Sequence[Request]) -> Iterator[tuple[int, int]]:
    """Yield first and end of each run of ids that follow one another."""
    first = end = requests[0].id
    for request in requests:
        if request.id != end:
            yield first, end
            first = request.id
        end = request.id + request.count
    yield first, end
