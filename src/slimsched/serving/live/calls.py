"""Calls under way: bundles of examples that the gateway answers, and the receipts of what became of them.

Everything enters the gateway as a bundle: the examples of one call, or of several clients' calls on the same
terms. The gateway decides once for a bundle. Other layers name its examples by their places in it. Whoever
handed the bundle in is told of each part as soon as it is answered or dropped, and `AnswerParts` makes the
answer to one call of such parts.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.models.spec import NUMPY, TensorSpec
from slimsched.serving.domain.request import NEVER_S, DropReason, Request, Trail, Why
from slimsched.serving.live.memory import LEAST_BYTES, InputArena

Arrays = tuple[NDArray[Any], ...]
"""The outputs of several examples, in the order of the model's spec, one row per example."""


class DroppedError(SlimError):
    """A request was dropped; `reason` says why, and the message adds details."""

    def __init__(self, reason: DropReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


# -- Inputs


class Rows(Struct, frozen=True):
    """Rows of each input tensor, of these sizes: their bytes, or where they lie in the input arena."""

    count: int
    sizes: Sequence[int]
    raws: Sequence[memoryview] = ()
    offsets: Sequence[int] = ()

    def part(self, start: int, end: int) -> "Rows":
        """Return some of the rows."""
        if end - start == self.count:
            return self
        raws = [raw[start * size : end * size] for raw, size in zip(self.raws, self.sizes, strict=False)]
        offsets = [at + start * size for at, size in zip(self.offsets, self.sizes, strict=False)]
        return Rows(end - start, self.sizes, raws, offsets)


def rows_of(inputs: Sequence[bytes | memoryview], count: int) -> Rows:
    """Return the rows of input tensors given as bytes."""
    return Rows(count, [len(raw) // count for raw in inputs], [memoryview(raw) for raw in inputs])


def in_arena(rows: Rows, arena: InputArena | None) -> Rows | None:
    """Return where these rows lie in the arena; None if they lie elsewhere."""
    if arena is None:
        return None
    offsets = [offset for raw in rows.raws if (offset := arena.offset(raw)) is not None]
    return Rows(rows.count, rows.sizes, offsets=offsets) if len(offsets) == len(rows.raws) else None


def laid(rows: Rows, arena: InputArena | None) -> tuple[Rows, memoryview | None]:
    """Put large inputs where servers can read them, unless they are there; also return what to give back."""
    if arena is None or sum(map(len, rows.raws)) < LEAST_BYTES:
        return rows, None
    if (found := in_arena(rows, arena)) is not None:
        return found, None
    if (views := arena.put(list(rows.raws))) is None:
        return rows, None
    return in_arena(Rows(rows.count, rows.sizes, views), arena) or rows, views[0]


def cut(pieces: Sequence[Rows], start: int, end: int) -> list[Rows]:
    """Return the rows from `start` to `end` of pieces that follow one another."""
    found, at = [], 0
    for piece in pieces:
        first, last = max(start - at, 0), min(end - at, piece.count)
        if first < last:
            found.append(piece.part(first, last))
        at += piece.count
    return found


# -- Answers


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


def arrays_of(raws: Sequence[bytes | memoryview], specs: Sequence[TensorSpec], count: int) -> Arrays:
    """Return the outputs of this many examples, given as bytes."""
    return tuple(
        [
            np.frombuffer(raw, NUMPY[spec.datatype]).reshape(count, *spec.shape)
            for raw, spec in zip(raws, specs, strict=True)
        ]
    )


class AnswerParts:
    """Makes the answer to one call, whose examples lie from `start` on in a bundle, of what is told of it.

    The call came `since_s` after the first of the bundle.
    """

    __slots__ = ("_left", "_parts", "count", "since_s", "start")

    def __init__(self, count: int, start: int = 0, since_s: float = 0.0) -> None:
        self.count, self.start, self.since_s = count, start, since_s
        self._left, self._parts = count, list[tuple[int, Arrays, list[Receipt]]]()

    @property
    def end(self) -> int:
        """Where the call's examples end in the bundle."""
        return self.start + self.count

    def take(self, start: int, answered: Answered) -> Answered | None:
        """Take this call's part of an answer that begins at `start`; return the whole after the last part."""
        outputs = answered.outputs
        first, last = max(start, self.start), min(start + len(outputs[0]), self.end)
        if last - first < len(outputs[0]):
            outputs = tuple([one[first - start : last - start] for one in outputs])
        receipts, at = [], start
        for receipt in answered.receipts:
            after = at + receipt.examples
            if at < last and first < after:  # with this call's examples alone
                own = replace(
                    receipt,
                    examples=min(after, last) - max(at, first),
                    request=receipt.request + self.start,
                    latency_s=receipt.latency_s - self.since_s,
                )
                receipts.append(own)
            at = after
        self._left -= last - first
        if last - first == self.count:
            return Answered(outputs=outputs, receipts=receipts)
        self._parts.append((first, outputs, receipts))
        if self._left:
            return None
        parts = sorted(self._parts, key=lambda part: part[0])
        tensors = zip(*[outputs for _, outputs, _ in parts], strict=True)
        receipts = [receipt for *_, found in parts for receipt in found]
        return Answered(outputs=tuple(map(np.concatenate, tensors)), receipts=receipts)


# -- Bundles


class BundleWaiter(Protocol):
    """Whoever handed a bundle in."""

    def answered(self, bundle: "Bundle", start: int, answered: Answered) -> None:
        """Take the answer to the examples from `start` on."""

    def dropped(self, bundle: "Bundle", start: int, end: int, why: DroppedError) -> None:
        """Take note that the examples from `start` to `end` have no answer."""


class Bundle:
    """Examples with consecutive request ids; neighbours share a receipt while they stay together."""

    def __init__(
        self,
        first: int,
        rows: Sequence[Rows],
        waiter: BundleWaiter,
        *,
        arrival_s: float = 0.0,
        deadline_s: float = NEVER_S,
        model: int = 0,
        number: int = 0,
        release: Callable[[], None] | None = None,
    ) -> None:
        """`first` is the request id of its first example; whoever handed it in knows it by `number`.

        Once the last example has left, `release` gives back what the inputs take of the arena.
        """
        self.first, self.count = first, (count := sum([piece.count for piece in rows]))
        self.model, self.number, self.arrival_s, self.deadline_s = model, number, arrival_s, deadline_s
        self.timer: asyncio.TimerHandle | None = None
        """Ends the bundle at its deadline."""
        self.is_cancelled = False
        """Whether nobody waits for it, and the gateway knows or need not be told."""
        self._release = release
        self._rows = rows
        self._waiter: BundleWaiter | None = waiter  # until all is told
        self._here = self._untold = count
        self._gone: bytearray | None = None  # marks the examples that have left, once some have
        self._told: bytearray | None = None  # the same for those whose answer or end was told
        self._receipts = [Receipt(examples=count, request=first)]
        self._outputs: list[tuple[int, Arrays]] = []  # as they came, with their places; the latest last
        self._ended: asyncio.Event | None = None

    @property
    def is_done(self) -> bool:
        """Whether nobody waits any more: everything is told, or whoever waited gave up."""
        return self._waiter is None

    @property
    def requests(self) -> range:
        """The request ids of the examples."""
        return range(self.first, self.first + self.count)

    def rows(self, start: int, end: int) -> Sequence[Rows]:
        """Return the inputs of some examples, in pieces."""
        return self._rows if end - start == self.count else cut(self._rows, start, end)

    # -- where its examples are

    def here(self, start: int, end: int) -> list[tuple[int, int]]:
        """List start and end of the stretches that have neither been answered nor dropped."""
        if self._gone is None:
            return [(start, end)]
        return _unmarked(self._gone, start, end)

    def left(self, start: int, count: int) -> bool:
        """These examples have been answered or dropped; return whether they were the last."""
        self._here -= count
        if self._here:
            self._gone = _mark(self._gone, self.count, start, count)
            return False
        if self._release is not None:
            self._release()
        return True

    # -- what became of them

    def receipts(self, start: int, end: int) -> list[Receipt]:
        """Return the receipts of these examples alone: one that is for others too is cut."""
        if end - start == self.count and len(self._receipts) == 1:
            return self._receipts
        found, at, place = [], 0, 0
        while at < end:
            receipt = self._receipts[place]
            after = at + receipt.examples
            edge = start if at < start < after else min(after, end)
            if edge < after:
                self._receipts.insert(place + 1, replace(receipt, examples=after - edge))
                receipt.examples = edge - at
            if at >= start:
                found.append(receipt)
            at, place = edge, place + 1
        return found

    def went(self, request: Request, now_s: float, energy_source: str) -> None:
        """Record which way some examples went."""
        start = request.id - self.first
        for receipt in self.receipts(start, start + request.count):
            receipt.path, receipt.trail, receipt.energy_source = request.path, request.trail, energy_source
            receipt.latency_s = now_s - self.arrival_s

    def put_outputs(self, start: int, outputs: Arrays) -> None:
        """Keep the model's outputs for some examples; those of a later plan replace those before."""
        self._outputs.append((start, outputs))

    def _take_outputs(self, start: int, count: int) -> Arrays:
        """Return the outputs of these examples; most came just so, and need not be copied."""
        for place in range(len(self._outputs) - 1, -1, -1):
            at, outputs = self._outputs[place]
            if at == start and len(outputs[0]) == count:
                del self._outputs[place]
                return outputs
            if at < start + count and start < at + len(outputs[0]):
                break
        kinds = self._outputs[0][1]
        whole = tuple([np.empty((self.count, *kind.shape[1:]), kind.dtype) for kind in kinds])
        for at, outputs in self._outputs:
            for kept, tensor in zip(whole, outputs, strict=True):
                kept[at : at + len(tensor)] = tensor
        self._outputs = [(0, whole)]
        return tuple([tensor[start : start + count] for tensor in whole])

    # -- who waits for them

    def answered(self, start: int, count: int) -> None:
        """Tell the answer to these examples."""
        if waiter := self._tell(start, count):
            outputs, receipts = self._take_outputs(start, count), self.receipts(start, start + count)
            waiter.answered(self, start, Answered(outputs=outputs, receipts=receipts))

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """Tell why these examples have no answer."""
        if waiter := self._tell(start, count):
            waiter.dropped(self, start, start + count, why)

    def fail(self, why: DroppedError) -> bool:
        """Tell why all that is left has no answer; return whether anything was left."""
        if self.is_done:
            return False
        untold = [(0, self.count)] if self._told is None else _unmarked(self._told, 0, self.count)
        for start, end in untold:
            self.dropped(start, end - start, why)
        return True

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._waiter = None
        if self.timer is not None:
            self.timer.cancel()
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait until nobody waits any more."""
        if not self.is_done:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()

    def _tell(self, start: int, count: int) -> BundleWaiter | None:
        """Note that these examples are told; return whom to tell, unless nobody waits for them."""
        waiter = self._waiter
        if waiter is not None:
            self._untold -= count
            if self._untold:
                self._told = _mark(self._told, self.count, start, count)
            else:
                self.give_up()
        return waiter


def _mark(marks: bytearray | None, size: int, start: int, count: int) -> bytearray:
    marks = bytearray(size) if marks is None else marks
    marks[start : start + count] = b"\1" * count
    return marks


def _unmarked(marks: bytearray, start: int, end: int) -> list[tuple[int, int]]:
    found = []
    while start < end and (start := marks.find(0, start, end)) >= 0:
        stop = marks.find(1, start, end)
        stop = end if stop < 0 else stop
        found.append((start, stop))
        start = stop
    return found


class OpenCall:
    """A call of this process, in a bundle of its own; await it for the answer.

    There is none if some of its examples are dropped: waiting raises why.
    """

    bundle: Bundle

    def __init__(self, count: int, future: "asyncio.Future[Answered]") -> None:
        self.future, self._parts = future, AnswerParts(count)

    def __await__(self) -> Generator[Any, None, Answered]:
        return self.future.__await__()

    def answered(self, _: Bundle, start: int, answered: Answered) -> None:
        """Keep a part of the answer; after the last one, wake the caller."""
        whole = self._parts.take(start, answered)
        if whole is not None and not self.future.done():
            self.future.set_result(whole)

    def dropped(self, _bundle: Bundle, _start: int, _end: int, why: DroppedError) -> None:
        """Tell the caller that there is no answer."""
        if not self.future.done():
            self.future.set_exception(why)
