"""Calls in bundles: what is passed on to the gateway together, by a front process or by the compiled line.

Passes calls on to the gateway in bundles, and gives them the answers that come back.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.models.spec import NUMPY
from slimsched.serving.api import limits as refusals
from slimsched.serving.api.calls import Call
from slimsched.serving.api.limits import Limits, RefusalError, TooLate, TooMany, Unavailable, shared
from slimsched.serving.api.service import Counted, InferenceService, ModelsChangedError, refusal_of, too_late
from slimsched.serving.api.shared_memory import RegionEntry
from slimsched.serving.domain.bundling import fits, hold_s
from slimsched.serving.domain.model import ModelEntry, ServedModel
from slimsched.serving.domain.request import ANY_TERMS, NEVER_S, Terms
from slimsched.serving.live.calls import Answered, Bundle, DroppedError, Receipt, Rows, cut, rows_of
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.memory import LEAST_BYTES, InputArena
from slimsched.serving.live.wire import InputPiece, NextRound, Ping, Pong

# -- Messages between the gateway and its front processes, which read requests and write answers for it.


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


# -- Calls that a front passes on to the gateway together, and the answers as they come back.

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


# -- The gateway's side of whoever passes calls on: takes the calls, and gives the answers.
#
# These are front processes, or the express line of this process.
# What comes and goes in one round of the event loop travels in one message.


class Sender(Protocol):
    """The way to whoever passes calls on."""

    def send(self, message: Struct) -> None:
        """Send without waiting."""


class FrontDesk:
    """Serves one front process, from its first call until its connection closes."""

    def __init__(self, service: InferenceService, cluster: LiveCluster, connection: Sender) -> None:
        self._service, self._cluster, self._connection = service, cluster, connection
        self._open: dict[int, _Taken] = {}  # by the front's number
        self._has_taken = False
        self._answers: list[FrontAnswer] = []
        self._refusals: list[FrontRefusal] = []
        self._round = NextRound(self._send)
        self._unknown: dict[int, asyncio.Future[None]] = {}  # changes of regions that the front must learn

    def introduce(self, limits: Limits, fronts: int) -> None:
        """Tell the front which models there are, and its share of the limits."""
        models = self._cluster.models
        message = Models(
            entries=[model.entry for model in models],
            accuracies=[model.quality.by_plan.tolist() for model in models],
            limits=shared(limits, fronts),
        )
        self._connection.send(message)

    def share(self, message: Regions) -> "asyncio.Future[None]":
        """Tell the front which regions of shared memory there are; it is done when the front knows."""
        self._connection.send(message)
        known = self._unknown[message.change] = asyncio.get_running_loop().create_future()
        return known

    def regions_known(self, change: int) -> None:
        """The front has learnt a change of the regions."""
        if (known := self._unknown.pop(change, None)) is not None and not known.done():
            known.set_result(None)

    def received(self, message: Calls) -> None:
        """Take calls, and let go of those that nobody waits for."""
        for model, examples in message.refused:
            self._cluster.count_refused(model, examples)
        if message.calls:
            models = {model.number: model for model in self._cluster.models}
            for calls in message.calls:
                self._take(calls, models.get(calls.model))
            self._has_taken = True
            self._round.expect()
        for number, start, end in message.left:
            if (taken := self._open.get(number)) is not None:
                taken.leave(start, end)

    def close(self) -> None:
        """The front is gone: nobody waits for its calls."""
        for taken in list(self._open.values()):
            self._cluster.cancel(taken.bundle)
        self._open.clear()
        for change in list(self._unknown):
            self.regions_known(change)

    def _take(self, calls: FrontCalls, model: ServedModel | None) -> None:
        """Take calls together; if not all of them can be accepted, as many as can."""
        counts, number = calls.counts, calls.number
        count = sum(counts)
        if model is None:
            self.refuse(number, 0, count, None)
            return
        ends = [0, *accumulate(counts)]
        fitting, refusal = self._fitting(calls, model, ends)
        taken, rows = ends[fitting], _rows(calls, count, model)
        if taken:
            self._submit(calls, model, rows if taken == count else cut(rows, 0, taken), taken)
        if refusal is not None:
            if isinstance(refusal, TooMany | TooLate):  # demand; other refusals say nothing about it
                self._cluster.count_refused(calls.model, count - taken)
            self.refuse(number, taken, count, refusal)

    def _fitting(
        self, calls: FrontCalls, model: ServedModel, ends: Sequence[int]
    ) -> tuple[int, RefusalError | None]:
        """Return how many calls, the first of these, can be accepted together, and why no more.

        `ends` says where each of them ends, after a zero.
        """
        arrived_s, refusal = self._cluster.since_zero_s(calls.arrived_s), None
        fitting, more = 0, len(ends)  # this many can be accepted, and this many cannot
        tried = len(ends) - 1
        while more - fitting > 1:
            try:
                self._service.admit(model, calls.terms, ends[tried], arrived_s, is_last_try=False)
                fitting = tried
            except RefusalError as error:
                more, refusal = tried, error
            tried = (fitting + more) // 2
        return fitting, refusal

    def _submit(self, calls: FrontCalls, model: ServedModel, rows: Sequence[Rows], count: int) -> None:
        """Submit the first calls, with this many examples."""
        taken = _Taken(self, self._cluster, calls.number)
        taken.bundle = self._cluster.submit_bundle(
            rows,
            calls.terms,
            taken,
            model=model.number,
            arrived_s=self._cluster.since_zero_s(calls.arrived_s),
        )
        self._open[calls.number] = taken

    def answer(self, number: int, start: int, answered: Answered) -> None:
        """Give the answer to some examples."""
        outputs = [one.data for one in answered.outputs]
        self._answers.append(FrontAnswer(number, start, outputs, answered.receipts))
        self._round.expect()

    def refuse(self, number: int, start: int, end: int, refusal: RefusalError | None) -> None:
        """Say why some examples have no answer."""
        kind = "" if refusal is None else type(refusal).__name__
        retry_after_s = None if refusal is None else refusal.retry_after_s
        self._refusals.append(FrontRefusal(number, start, end, kind, str(refusal or ""), retry_after_s))
        self._round.expect()

    def end(self, taken: "_Taken") -> None:
        """Nobody waits for these calls any more."""
        self._open.pop(taken.number, None)

    def _send(self) -> None:
        wait_s = hold_s(self._cluster.least_backlog_s) if self._has_taken else 0.0
        message = Answers(
            answers=self._answers, refusals=self._refusals, taken=self._has_taken, hold_s=wait_s
        )
        self._answers, self._refusals, self._has_taken = [], [], False
        self._connection.send(message)


class _Taken:
    """Calls of a front that were taken together: all of a message, or the first."""

    __slots__ = ("_cluster", "_desk", "bundle", "number")
    bundle: Bundle

    def __init__(self, desk: FrontDesk, cluster: LiveCluster, number: int) -> None:
        self._desk, self._cluster, self.number = desk, cluster, number

    def answered(self, start: int, answered: Answered) -> None:
        """Give the answer to the examples from `start` on, unless it is too late."""
        bundle = self.bundle
        if bundle.deadline_s < NEVER_S and self._cluster.now_s > bundle.deadline_s:
            end = start + sum([receipt.examples for receipt in answered.receipts])
            self._desk.refuse(self.number, start, end, too_late())
        else:
            self._desk.answer(self.number, start, answered)
        if bundle.is_done:
            self._desk.end(self)

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """Say why these examples have no answer."""
        self._desk.refuse(self.number, start, start + count, refusal_of(why))
        if self.bundle.is_done:
            self._desk.end(self)

    def leave(self, start: int, end: int) -> None:
        """Let go of those of these examples that are here: their client has left."""
        end = min(self.bundle.count, end)
        if start < end:
            self._cluster.cancel_part(self.bundle, start, end)


def _rows(calls: FrontCalls, count: int, model: ServedModel) -> Sequence[Rows]:
    """Return the inputs of all calls, wherever they lie."""
    if not calls.pieces:
        return [rows_of(calls.inputs, count)]
    sizes = [one.row_bytes for one in model.spec.inputs]
    return [Rows(piece.rows, sizes, offsets=piece.offsets) for piece in calls.pieces]


class PassedOn(Protocol):
    """A bundle that is with the gateway."""

    number: int

    def message(self, arena: InputArena | None) -> FrontCalls:
        """Write the bundle for the gateway."""
        ...

    def answered(self, start: int, raws: Sequence[memoryview], receipts: Sequence[Receipt]) -> None:
        """Give calls the answer to the examples from `start` on."""

    def refused(self, start: int, end: int, error: SlimError) -> None:
        """Tell calls why these examples have no answer."""


class GatheringLine(Protocol):
    """Reads requests whose heads are known, and keeps them until they can be passed on."""

    def bundles(self, first_number: int) -> "Sequence[PassedOn]":
        """Take all that have come."""
        ...

    def hold(self, seconds: float) -> None:
        """Let requests gather for this long before they are announced."""


class BundleLink:
    """One end of the way to the gateway, which may be in this process or in another.

    Calls that come while the gateway has not taken those before go together with the next.
    """

    def __init__(self, send: Callable[[Calls], None], arena: InputArena | None) -> None:
        self.arena, self._send = arena, send
        self.lines: list[GatheringLine] = []
        self.is_taken = True
        """Whether the gateway has taken all calls that were passed on."""
        self._next = 0
        self._bundles: dict[int, PassedOn] = {}
        self._asked: list[AskedCall] = []  # not passed on yet
        self._left: list[Left] = []
        self._refused: Counter[int] = Counter()  # examples refused without asking, by model
        self._round = NextRound(self._pass_on)

    def ask(self, asked: AskedCall) -> None:
        """Pass a call on."""
        self._asked.append(asked)
        self.expect()

    def expect(self) -> None:
        """Pass on what is here, as soon as the gateway has taken what was passed on before."""
        if self.is_taken:
            self._round.expect()

    def leave(self, number: int, start: int, end: int) -> None:
        """Tell the gateway that nobody waits for some examples of a bundle."""
        self._left.append(Left(number, start, end))
        self._round.expect()

    def count_refused(self, model: int, examples: int) -> None:
        """Tell the gateway, with the next calls, that examples were refused without asking it."""
        self._refused[model] += examples

    @property
    def is_waiting(self) -> bool:
        """Whether any call is with the gateway."""
        return bool(self._bundles)

    def done(self, number: int) -> None:
        """Forget a bundle."""
        self._bundles.pop(number, None)

    def received(self, message: Answers) -> None:
        """Take a message of the gateway."""
        for answer in message.answers:
            if (bundle := self._bundles.get(answer.number)) is not None:
                bundle.answered(answer.start, answer.outputs, answer.receipts)
        for one in message.refusals:
            if (bundle := self._bundles.get(one.number)) is not None:
                bundle.refused(one.start, one.end, _error_of(one))
        if message.taken:
            self.is_taken = True
            for line in self.lines:
                line.hold(message.hold_s)
            self._round.expect()

    def _pass_on(self) -> None:
        """Pass on what has come since the gateway took the calls before it."""
        bundles: list[PassedOn] = []
        if self.is_taken:
            for line in self.lines:
                bundles += line.bundles(self._next + len(bundles))
            asked, self._asked = [one for one in self._asked if not one.future.done()], []
            bundles += bundled(asked, self._next + len(bundles))
            self._next += len(bundles)
            self.is_taken = not bundles
            self._bundles |= {one.number: one for one in bundles}
        left, self._left = self._left, []
        if bundles or left or self._refused:
            refused = list(self._refused.items())
            self._refused.clear()
            calls = [one.message(self.arena) for one in bundles]
            self._send(Calls(calls=calls, left=left, refused=refused))


def _error_of(refused: FrontRefusal) -> SlimError:
    """Return the refusal as the gateway raised it."""
    if not refused.kind:
        return ModelsChangedError("the model was replaced")
    kind: type[RefusalError] = getattr(refusals, refused.kind, Unavailable)
    error = kind.__new__(kind)
    RefusalError.__init__(error, refused.why)
    error.retry_after_s = refused.retry_after_s
    return error


# -- The link between the express line and the gateway where both are in one process.


class _Connection:
    """Passes messages on as they are."""

    def __init__(self, received: Callable[[Answers], None]) -> None:
        self._received = received

    def send(self, message: Struct) -> None:
        """Deliver a message at once."""
        assert isinstance(message, Answers)
        self._received(message)


def local_link(service: InferenceService, cluster: LiveCluster) -> BundleLink:
    """Return a link to the gateway of this process."""
    link = BundleLink(lambda calls: desk.received(calls), cluster.arena)
    desk = FrontDesk(service, cluster, _Connection(link.received))
    return link
