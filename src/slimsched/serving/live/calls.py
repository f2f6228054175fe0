"""Calls under way: the examples of a call, or of several clients' calls in a bundle, and their receipts so
far.

A parcel: the examples of one call, the caller that waits for them, and their receipts so far.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.serving.domain.request import NEVER_S, DropReason, Request, Trail, Why
from slimsched.serving.live.memory import LEAST_BYTES, InputArena

Arrays = tuple[NDArray[Any], ...]
"""The outputs of several examples, in the order of the model's spec, one row per example."""


class DroppedError(SlimError):
    """A request was dropped; `reason` says why, and the message adds details."""

    def __init__(self, reason: DropReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


class Example(NamedTuple):
    """One example of a known set: its inputs, its position in the set, and the model to run."""

    inputs: Sequence[bytes]
    example: int = -1
    model: int = 0


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


def cut(pieces: Sequence[Rows], start: int, end: int) -> list[Rows]:
    """Return the rows from `start` to `end` of pieces that follow one another."""
    found, at = [], 0
    for piece in pieces:
        first, last = max(start - at, 0), min(end - at, piece.count)
        if first < last:
            found.append(piece.part(first, last))
        at += piece.count
    return found


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


class OpenExamples(ABC):
    """Examples with consecutive request ids; neighbours share a receipt while they stay together."""

    def __init__(
        self,
        first: int,
        rows: Sequence[Rows],
        count: int,
        arrival_s: float,
        model: int = 0,
        deadline_s: float = NEVER_S,
    ) -> None:
        self.model, self.deadline_s = model, deadline_s
        self.is_cancelled = False  # nobody waits for it any more, and the gateway need not be told
        self.first, self.count, self.arrival_s = first, count, arrival_s
        self.timer: asyncio.TimerHandle | None = None  # for its deadline
        self._rows, self._left, self._here = rows, count, count
        self._gone: bytearray | None = None  # marks the examples that have left, once some have
        self._receipts = [Receipt(examples=count, request=first)]
        self._outputs: Arrays | None = None

    @property
    def requests(self) -> range:
        """The request ids of the examples."""
        return range(self.first, self.first + self.count)

    def rows(self, start: int, end: int) -> Sequence[Rows]:
        """Return the inputs of some examples, in pieces."""
        return self._rows if end - start == self.count else cut(self._rows, start, end)

    def here(self, start: int, end: int) -> list[tuple[int, int]]:
        """List start and end of the stretches that have neither been answered nor dropped."""
        if self._gone is None:
            return [(start, end)]
        found = []
        while start < end and (start := self._gone.find(0, start, end)) >= 0:
            stop = self._gone.find(1, start, end)
            stop = end if stop < 0 else stop
            found.append((start, stop))
            start = stop
        return found

    def left(self, start: int, count: int) -> bool:
        """These examples have been answered or dropped; return whether they were the last."""
        self._here -= count
        if not self._here:
            return True
        if self._gone is None:
            self._gone = bytearray(self.count)
        self._gone[start : start + count] = b"\1" * count
        return False

    def receipts(self, start: int, end: int) -> list[Receipt]:
        """Return the receipts of these examples alone."""
        if end - start == self.count and len(self._receipts) == 1:
            return self._receipts
        found = self._between(start, end)
        if found is None:
            self._cut(start)
            self._cut(end)
            found = self._between(start, end)
        assert found is not None
        return found

    def _between(self, start: int, end: int) -> list[Receipt] | None:
        """Return the receipts of these examples; None if some of them are for others too."""
        found, at = [], 0
        for receipt in self._receipts:
            after = at + receipt.examples
            if after > start:
                if at < start or after > end:
                    return None
                found.append(receipt)
                if after == end:
                    break
            at = after
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

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether nobody waits any more."""

    @abstractmethod
    def answered(self, start: int, count: int) -> None:
        """These examples are done."""

    @abstractmethod
    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """These examples have no answer."""

    @abstractmethod
    def fail(self, why: DroppedError) -> bool:
        """Say that there will be no more answers; return whether anybody still waited for one."""

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Parcel(OpenExamples):
    """The examples of one call; its caller waits until the last of them is done."""

    def __init__(
        self,
        first: int,
        rows: Rows,
        arrival_s: float,
        future: "asyncio.Future[Answered]",
        model: int = 0,
        deadline_s: float = NEVER_S,
    ) -> None:
        super().__init__(first, [rows], rows.count, arrival_s, model, deadline_s)
        self.future = future
        self._release: Callable[[], None] | None = None

    def __await__(self) -> Generator[Any, None, Answered]:
        """Wait for the answer; raises if some of the examples were dropped."""
        return self.future.__await__()

    def lie_in(self, arena: InputArena) -> None:
        """Put large inputs where servers can read them, unless they are there already.

        What is put there is given back when the last example has left.
        """
        (rows,) = self._rows
        if sum(map(len, rows.raws)) < LEAST_BYTES:
            return
        offsets = [arena.offset(view) for view in rows.raws]
        if None in offsets:
            if (laid := arena.put(list(rows.raws))) is None:
                return
            offsets, self._release = [arena.offset(view) for view in laid], partial(arena.give_back, laid[0])
        where = [offset for offset in offsets if offset is not None]
        self._rows = [Rows(self.count, rows.sizes, offsets=where)]

    def left(self, start: int, count: int) -> bool:
        """These examples have been answered or dropped; after the last one, give the room back."""
        is_last = super().left(start, count)
        if is_last and self._release is not None:
            self._release()
        return is_last

    @property
    def is_done(self) -> bool:
        """Whether the caller waits no more."""
        return self.future.done()

    def answered(self, start: int, count: int) -> None:
        """Count these examples as done; after the last one, wake the caller."""
        self._left -= count
        if not self._left and not self.is_done:
            assert self._outputs is not None
            self._stop_timer()
            self.future.set_result(Answered(outputs=self._outputs, receipts=self._receipts))

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """These examples have no answer, so the call has none."""
        self.fail(why)

    def fail(self, why: DroppedError) -> bool:
        """Tell the caller that there is no answer; return whether it still waited for one."""
        if self.is_done:
            return False
        self._stop_timer()
        self.future.set_exception(why)
        return True

    def give_up(self) -> None:
        """The caller waits no more."""
        super().give_up()
        self.future.cancel()


# -- A bundle: calls of several clients on the same terms, which a front process passed on together.
#
# To the gateway it is like one call with many examples, so that it costs as little. But its clients do not
# wait
# for one another: each part is told as soon as it is answered or dropped.


class BundleWaiter(Protocol):
    """Whoever passed the calls on."""

    def answered(self, start: int, answered: Answered) -> None:
        """Tell it the answer to the examples from `start` on."""

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """Tell it that these examples have no answer."""


class Bundle(OpenExamples):
    """Examples of several calls with consecutive request ids."""

    def __init__(
        self,
        first: int,
        rows: Sequence[Rows],
        count: int,
        arrival_s: float,
        listener: BundleWaiter,
        model: int = 0,
        deadline_s: float = NEVER_S,
    ) -> None:
        super().__init__(first, rows, count, arrival_s, model, deadline_s)
        self._listener, self._told, self._is_done = listener, bytearray(count), False
        self._came: list[tuple[int, Arrays]] = []  # outputs that nobody was told yet

    @property
    def is_done(self) -> bool:
        """Whether nobody waits any more."""
        return self._is_done

    def give_up(self) -> None:
        """Nobody waits any more."""
        super().give_up()
        self._is_done = True

    def answered(self, start: int, count: int) -> None:
        """Tell the answer to these examples."""
        if self._tell(start, count):
            outputs, receipts = self._take_outputs(start, count), self.receipts(start, start + count)
            self._listener.answered(start, Answered(outputs=outputs, receipts=receipts))

    def put_outputs(self, start: int, outputs: Arrays) -> None:
        """Keep outputs as they came: most are told at once, and need not be copied."""
        self._came.append((start, outputs))

    def _take_outputs(self, start: int, count: int) -> Arrays:
        """Return the outputs of these examples; what came last counts."""
        for place in range(len(self._came) - 1, -1, -1):
            at, outputs = self._came[place]
            if at == start and len(outputs[0]) == count:
                del self._came[place]
                return outputs
            if at < start + count and start < at + len(outputs[0]):
                break
        for at, outputs in self._came:
            super().put_outputs(at, outputs)
        self._came.clear()
        assert self._outputs is not None
        return tuple([one[start : start + count] for one in self._outputs])

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """Tell why these examples have no answer."""
        if self._tell(start, count):
            self._listener.dropped(start, count, why)

    def fail(self, why: DroppedError) -> bool:
        """Tell why all that is left has no answer; return whether anything was left."""
        if self._is_done:
            return False
        start = 0
        for is_told, flags in groupby(bytes(self._told)):
            count = len(list(flags))
            if not is_told:
                self.dropped(start, count, why)
            start += count
        return True

    def _tell(self, start: int, count: int) -> bool:
        """Note that these examples are told; return False if nobody waits for them."""
        if self._is_done:
            return False
        self._told[start : start + count] = b"\1" * count
        self._left -= count
        if not self._left:
            self.give_up()
        return True
