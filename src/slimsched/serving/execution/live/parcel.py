"""A parcel: the examples of one call, the caller that waits for them, and their receipts so far."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.kernel.errors import SlimError
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.domain.trail import Trail
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


class Receipt(Struct, kw_only=True):
    """The record of an example: choices and servers by segment, and its time and energy.

    `trail` is there where answers are judged: how sure the model was, and which plans ran before.
    """

    path: tuple[int, ...] = ()
    servers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    queue_s: float = 0.0
    compute_s: float = 0.0
    energy_j: float = 0.0
    energy_source: str = ""
    latency_s: float = 0.0
    trail: Trail | None = None


class Answered(Struct, frozen=True, kw_only=True):
    """The outputs and the receipts: one per example, or one for all of them."""

    outputs: Arrays
    receipts: Sequence[Receipt]


class Parcel:
    """Examples with consecutive request ids; they share one receipt while they stay together.

    `inputs` holds the bytes of each input tensor, one row per example.
    """

    def __init__(
        self,
        first: int,
        inputs: Sequence[memoryview],
        count: int,
        arrival_s: float,
        waiter: "asyncio.Future[Answered]",
        model: int = 0,
        deadline_s: float = NEVER_S,
    ) -> None:
        self.model, self.deadline_s = model, deadline_s
        self.is_cancelled = False  # nobody waits for it any more, and the gateway need not be told
        self.first, self.count, self.arrival_s, self.waiter = first, count, arrival_s, waiter
        self._inputs, self._left = inputs, count
        self._here = count
        self._offsets: Sequence[int] = ()
        self._release: Callable[[], None] | None = None
        self._receipts = [Receipt()]
        self._outputs: Arrays | None = None

    def __await__(self) -> Generator[Any, None, Answered]:
        """Wait for the answer; raises if some of the examples were dropped."""
        return self.waiter.__await__()

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

    def piece(self, start: int, end: int) -> InputPiece | None:
        """Say where some examples lie in the arena; None if they do not lie there."""
        if not self._offsets:
            return None
        sizes = [len(raw) // self.count for raw in self._inputs]
        offsets = [offset + start * size for offset, size in zip(self._offsets, sizes, strict=True)]
        return InputPiece(end - start, offsets)

    def left(self, count: int) -> None:
        """This many examples have been answered or dropped; after the last one, give the room back."""
        self._here -= count
        if not self._here and self._release is not None:
            self._release()

    def receipts(self, start: int, end: int, *, each: bool = False) -> list[Receipt]:
        """Return the receipts of these examples alone; where all share one, that one, unless `each`."""
        if len(self._receipts) < self.count and (each or end - start < self.count):
            self._receipts = [replace(self._receipts[0]) for _ in range(self.count)]
        return self._receipts if len(self._receipts) < self.count else self._receipts[start:end]

    def went(self, start: int, requests: Sequence[Request], now_s: float, energy_source: str) -> None:
        """Record which ways some examples went; they share a receipt only if all went the same way."""
        first = requests[0]
        parted = any(one.path != first.path or one.trail != first.trail for one in requests)
        receipts = self.receipts(start, start + len(requests), each=parted)
        for receipt, request in zip(receipts, requests, strict=False):
            receipt.path, receipt.trail, receipt.energy_source = request.path, request.trail, energy_source
            receipt.latency_s = now_s - self.arrival_s

    def put_outputs(self, start: int, outputs: Arrays) -> None:
        """Store the model's outputs for some examples."""
        rows = len(outputs[0])
        if rows == self.count:
            self._outputs = outputs
            return
        if self._outputs is None:
            self._outputs = tuple(np.empty((self.count, *one.shape[1:]), one.dtype) for one in outputs)
        for kept, one in zip(self._outputs, outputs, strict=True):
            kept[start : start + rows] = one

    def answered(self, count: int) -> None:
        """Count this many more examples as done; after the last one, wake the caller."""
        self._left -= count
        if not self._left and not self.waiter.done():
            assert self._outputs is not None
            self.waiter.set_result(Answered(outputs=self._outputs, receipts=self._receipts))
