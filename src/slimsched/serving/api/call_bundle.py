"""Calls that a front passes on to the gateway together, and the answers as they come back."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.models.spec import NUMPY
from slimsched.serving.api.call import Call
from slimsched.serving.api.front_message import FrontCalls
from slimsched.serving.domain.bundling import fits
from slimsched.serving.domain.request import Terms
from slimsched.serving.live.calls import Answered, Receipt
from slimsched.serving.live.memory import LEAST_BYTES, InputArena
from slimsched.serving.live.wire import InputPiece

Outputs = list[NDArray[Any]]


class Waiter(Protocol):
    """Whoever waits for the answer to a call."""

    def done(self) -> bool:
        """Whether it waits no more."""
        ...

    def set_result(self, result: Answered, /) -> None:
        """Give it the answer."""

    def set_exception(self, exception: SlimError, /) -> None:
        """Tell it why there is none."""


class AskedCall:
    """A call, and what has come back of it so far. Its examples lie from `start` on in its bundle."""

    __slots__ = ("arrived_s", "bundle", "call", "future", "left", "outputs", "receipts", "start")

    def __init__(self, call: Call, arrived_s: float, future: Waiter) -> None:
        self.call, self.arrived_s, self.future = call, arrived_s, future
        self.bundle: CallBundle | None = None
        self.start, self.left = 0, call.count
        self.outputs: Outputs | None = None
        self.receipts: list[tuple[int, Receipt]] = []

    @property
    def end(self) -> int:
        """Where its examples end in the bundle."""
        return self.start + self.call.count

    def take(self, start: int, outputs: Outputs, receipts: Sequence[Receipt], since_s: float) -> None:
        """Take this call's part of an answer that begins at `start`; after the last part the call is done."""
        first, last = max(start, self.start), min(start + len(outputs[0]), self.end)
        self.left -= last - first
        parts = [one[first - start : last - start] for one in outputs]
        if last - first == self.call.count:
            self.outputs = parts
        else:
            if self.outputs is None:
                self.outputs = [np.empty((self.call.count, *one.shape[1:]), one.dtype) for one in parts]
            for kept, part in zip(self.outputs, parts, strict=True):
                kept[first - self.start : last - self.start] = part
        at = start
        for receipt in receipts:
            begin, end = max(at, first), min(at + receipt.examples, last)
            if begin < end:
                self.receipts.append((begin, self._own(receipt, end - begin, since_s)))
            at += receipt.examples
        if not self.left and not self.future.done():
            ordered = self.receipts if len(self.receipts) == 1 else sorted(self.receipts, key=_place)
            answer = Answered(outputs=tuple(self.outputs), receipts=[one for _, one in ordered])
            self.future.set_result(answer)

    def _own(self, receipt: Receipt, examples: int, since_s: float) -> Receipt:
        """Return the receipt of this call's examples alone: their number, and the time since it arrived."""
        return replace(
            receipt,
            examples=examples,
            request=receipt.request + self.start,
            latency_s=receipt.latency_s - since_s,
        )


def _place(one: tuple[int, Receipt]) -> int:
    return one[0]


class CallBundle:
    """Calls to one model on the same terms, in the order in which they came."""

    def __init__(self, number: int, first: AskedCall) -> None:
        call = first.call
        self.number, self.calls, self.examples = number, [first], call.count
        self.model, self.terms, self._arrived_s = call.face.model.number, call.terms, first.arrived_s
        self._rooms: list[memoryview] = []
        self._open = 1
        first.bundle = self

    def add(self, asked: AskedCall) -> bool:
        """Take a call in, if it fits."""
        if not fits(self._arrived_s, self.examples, asked.arrived_s, asked.call.count):
            return False
        asked.bundle, asked.start = self, self.examples
        self.calls.append(asked)
        self.examples += asked.call.count
        self._open += 1
        return True

    def message(self, arena: InputArena | None) -> FrontCalls:
        """Write the bundle for the gateway; large inputs are laid in the arena."""
        pieces = None if arena is None else self._lay(arena)
        inputs = () if pieces is not None else self._joined()
        counts = [one.call.count for one in self.calls]
        return FrontCalls(self.number, self.model, counts, self._arrived_s, inputs, pieces or (), self.terms)

    def answered(self, start: int, raws: Sequence[memoryview], receipts: Sequence[Receipt]) -> None:
        """Give each call its part of an answer."""
        count = sum([receipt.examples for receipt in receipts])
        outputs = [
            np.frombuffer(raw, NUMPY[spec.datatype]).reshape(count, *spec.shape)
            for raw, spec in zip(raws, self.calls[0].call.face.spec.outputs, strict=True)
        ]
        for asked in self.between(start, start + count):
            asked.take(start, outputs, receipts, asked.arrived_s - self._arrived_s)

    def between(self, start: int, end: int) -> list[AskedCall]:
        """Return the calls that have examples between these places."""
        return [one for one in self.calls if one.start < end and start < one.end]

    def refused(self, start: int, end: int, error: SlimError) -> None:
        """Tell calls why they have no answer."""
        for asked in self.between(start, end):
            if not asked.future.done():
                asked.future.set_exception(error)

    def leave(self, arena: InputArena | None) -> bool:
        """A call has ended; after the last one give the room back, and return True.

        A server may still read it, for a call that nobody waits for.
        """
        self._open -= 1
        if not self._open and arena is not None:
            for room in self._rooms:
                arena.give_back(room)
        return not self._open

    def _joined(self) -> list[memoryview]:
        """Return the bytes of each input tensor, call by call."""
        calls = [one.call.inputs for one in self.calls]
        if len(calls) == 1:
            return [memoryview(raw) for raw in calls[0]]
        return [memoryview(b"".join(raws)) for raws in zip(*calls, strict=True)]

    def _lay(self, arena: InputArena) -> list[InputPiece] | None:
        """Say where the inputs lie in the arena, after putting them there if need be; None if they do not."""
        pieces: list[InputPiece] = []
        for one in self.calls:
            offsets = [arena.offset(memoryview(raw)) for raw in one.call.inputs]
            if None in offsets:
                break
            pieces.append(InputPiece(one.call.count, [offset for offset in offsets if offset is not None]))
        else:
            return pieces
        joined = self._joined()
        if sum(map(len, joined)) < LEAST_BYTES or (laid := arena.put(joined)) is None:
            return None
        self._rooms.append(laid[0])
        offsets = [arena.offset(view) for view in laid]
        return [InputPiece(self.examples, [offset for offset in offsets if offset is not None])]


def bundled(asked: Sequence[AskedCall], first_number: int) -> list[CallBundle]:
    """Put calls that go together into bundles."""
    bundles: list[CallBundle] = []
    last: dict[tuple[int, Terms], CallBundle] = {}
    for one in asked:
        key = one.call.face.model.number, one.call.terms
        found = last.get(key)
        if found is None or not found.add(one):
            last[key] = found = CallBundle(first_number + len(bundles), one)
            bundles.append(found)
    return bundles
