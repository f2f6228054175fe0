"""Calls in bundles: what a front process or a compiled line passes on to the gateway together.

`CallBatcher` is the end of those that read requests: it gathers calls into bundles, passes them on, and gives
each call its answer. `FrontSession` is the gateway's end: it submits the bundles, and sends what becomes of
them. The two may be in one process; messages are then passed as they are, without being written out.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from slimsched.core.config import SlimError
from slimsched.serving.api.calls import Call
from slimsched.serving.api.limits import REFUSALS, Limits, RefusalError, shared
from slimsched.serving.api.service import (
    Counted,
    InferenceService,
    ModelsChangedError,
    refusal_of,
)
from slimsched.serving.api.shared_memory import RegionEntry
from slimsched.serving.domain.bundling import fits, hold_s
from slimsched.serving.domain.model import ModelEntry, ServedModel
from slimsched.serving.domain.request import ANY_TERMS, NEVER_S, DropReason, Terms
from slimsched.serving.live.calls import (
    Answered,
    AnswerParts,
    Bundle,
    DroppedError,
    Receipt,
    Rows,
    arrays_of,
    cut,
    in_arena,
    laid,
    rows_of,
)
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import Drain, InputPiece, Introduction, NextRound, Ping, Pong

if TYPE_CHECKING:
    from slimsched.serving.live.cluster import LiveCluster

# -- Messages between the gateway and its front processes, which read requests and write answers for it.


class FrontReady(Introduction, frozen=True, kw_only=True, tag=True):
    """Front to gateway: here I am."""


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


ToFront = Models | Answers | Regions | Drain | Ping
"""`Drain` means: take no more requests, answer those under way, then end."""
FromFront = FrontReady | FrontListens | Calls | Counted | RegionsKnown | Pong


# -- Calls that a front passes on to the gateway together, and the answers as they come back.


class PendingCall:
    """A call that somebody waits for, and what has come back of it so far."""

    __slots__ = ("arrived_s", "bundle", "call", "future", "parts")

    def __init__(self, call: Call, arrived_s: float, future: "asyncio.Future[Answered]") -> None:
        self.call, self.arrived_s, self.future = call, arrived_s, future
        self.bundle: CallBundle | None = None  # once it was passed on
        self.parts: AnswerParts


class CallBundle:
    """Calls to one model on the same terms, in the order in which they came."""

    def __init__(self, number: int, first: PendingCall) -> None:
        self.number, self.calls, self.examples = number, list[PendingCall](), 0
        self._api, self._terms, self._arrived_s = first.call.api, first.call.terms, first.arrived_s
        self._room: memoryview | None = None  # what the inputs take of the arena
        self._open = 0
        self._enter(first)

    def add(self, pending: PendingCall) -> bool:
        """Take a call in, if it fits."""
        if not fits(self._arrived_s, self.examples, pending.arrived_s, pending.call.count):
            return False
        self._enter(pending)
        return True

    def _enter(self, pending: PendingCall) -> None:
        since_s = pending.arrived_s - self._arrived_s
        pending.bundle, pending.parts = self, AnswerParts(pending.call.count, self.examples, since_s)
        self.calls.append(pending)
        self.examples += pending.call.count
        self._open += 1

    def message(self, arena: InputArena | None) -> FrontCalls:
        """Write the bundle for the gateway; large inputs are laid in the arena."""
        counts = [one.call.count for one in self.calls]
        calls = [rows_of(one.call.inputs, one.call.count) for one in self.calls]
        pieces = [piece for rows in calls if (piece := in_arena(rows, arena)) is not None]
        if len(pieces) < len(calls):
            raws = [rows.raws for rows in calls]
            joined = raws[0] if len(raws) == 1 else [b"".join(each) for each in zip(*raws, strict=True)]
            rows, self._room = laid(rows_of(joined, self.examples), arena)
            pieces = [rows]
        return message_of(self.number, self._api.model.number, counts, self._arrived_s, pieces, self._terms)

    def answered(self, start: int, raws: Sequence[memoryview], receipts: Sequence[Receipt]) -> None:
        """Give each call its part of an answer."""
        count = sum([receipt.examples for receipt in receipts])
        answered = Answered(outputs=arrays_of(raws, self._api.spec.outputs, count), receipts=receipts)
        for pending in self._between(start, start + count):
            whole = pending.parts.take(start, answered)
            if whole is not None and not pending.future.done():
                pending.future.set_result(whole)

    def refused(self, start: int, end: int, error: SlimError) -> None:
        """Tell calls why they have no answer."""
        for pending in self._between(start, end):
            if not pending.future.done():
                pending.future.set_exception(error)

    def leave(self, arena: InputArena | None) -> bool:
        """A call has ended; after the last one give the room back, and return True.

        A server may still read it, for a call that nobody waits for.
        """
        self._open -= 1
        if not self._open and arena is not None and self._room is not None:
            arena.give_back(self._room)
        return not self._open

    def _between(self, start: int, end: int) -> list[PendingCall]:
        """Return the calls that have examples between these places."""
        return [one for one in self.calls if one.parts.start < end and start < one.parts.end]


def message_of(
    number: int, model: int, counts: Sequence[int], arrived_s: float, pieces: Sequence[Rows], terms: Terms
) -> FrontCalls:
    """Write a bundle for the gateway, with its inputs or where they lie in the arena."""
    inputs = [] if pieces[0].offsets else pieces[0].raws
    laid_out = [InputPiece(one.count, one.offsets) for one in pieces if one.offsets]
    return FrontCalls(number, model, counts, arrived_s, inputs, laid_out, terms)


def bundled(pending: Sequence[PendingCall], first_number: int) -> list[CallBundle]:
    """Put calls that go together into bundles."""
    bundles: list[CallBundle] = []
    last: dict[tuple[int, Terms], CallBundle] = {}
    for one in pending:
        key = one.call.api.model.number, one.call.terms
        found = last.get(key)
        if found is None or not found.add(one):
            last[key] = found = CallBundle(first_number + len(bundles), one)
            bundles.append(found)
    return bundles


# -- The gateway's side of whoever passes calls on: takes the calls, and gives the answers.
#
# These are front processes, or the express line of this process.
# What comes and goes in one round of the event loop travels in one message.


class FrontSession:
    """Serves one front process, from its first call until its connection closes."""

    def __init__(
        self, service: InferenceService, cluster: "LiveCluster", send: Callable[[ToFront], None]
    ) -> None:
        """`send` sends a message to the front without waiting."""
        self._service, self._cluster, self._to_front = service, cluster, send
        self._open: dict[int, Bundle] = {}  # by the front's number
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
            accuracies=[one.quality.by_plan.tolist() * one.quality.is_measured for one in models],
            limits=shared(limits, fronts),
        )
        self._to_front(message)

    def share(self, message: Regions) -> "asyncio.Future[None]":
        """Tell the front which regions of shared memory there are; it is done when the front knows."""
        self._to_front(message)
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
            if (bundle := self._open.get(number)) is not None and start < (end := min(bundle.count, end)):
                self._cluster.cancel_part(bundle, start, end)

    def close(self) -> None:
        """The front is gone: nobody waits for its calls."""
        for bundle in list(self._open.values()):
            self._cluster.cancel(bundle)
        self._open.clear()
        for change in list(self._unknown):
            self.regions_known(change)

    def _take(self, calls: FrontCalls, model: ServedModel | None) -> None:
        """Take calls together; if not all of them can be accepted, as many as can."""
        counts, number = calls.counts, calls.number
        count = sum(counts)
        if model is None:
            self._refuse(number, 0, count, None)
            return
        ends = [0, *accumulate(counts)]
        fitting, refusal = self._fitting(calls, model, ends)
        taken, rows = ends[fitting], _rows(calls, count, model)
        if taken:
            self._open[number] = self._cluster.submit_bundle(
                rows if taken == count else cut(rows, 0, taken),
                calls.terms,
                self,
                model=calls.model,
                arrived_s=self._cluster.since_zero_s(calls.arrived_s),
                number=number,
            )
        if refusal is not None:
            self._service.count_refused(refusal, calls.model, count - taken)
            self._refuse(number, taken, count, refusal)

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
                self._service.admit(model, calls.terms, ends[tried], arrived_s)
                fitting = tried
            except RefusalError as error:
                more, refusal = tried, error.with_traceback(None)  # else it and its frames hold each other
            tried = (fitting + more) // 2
        return fitting, refusal

    def answered(self, bundle: Bundle, start: int, answered: Answered) -> None:
        """Give the answer to the examples from `start` on, unless it is too late."""
        if bundle.deadline_s < NEVER_S and self._cluster.now_s > bundle.deadline_s:
            late = refusal_of(DroppedError(DropReason.DEADLINE_PASSED))
            self._refuse(bundle.number, start, start + len(answered.outputs[0]), late)
        else:
            outputs = [one.data for one in answered.outputs]
            self._answers.append(FrontAnswer(bundle.number, start, outputs, answered.receipts))
            self._round.expect()
        self._forget(bundle)

    def dropped(self, bundle: Bundle, start: int, end: int, why: DroppedError) -> None:
        """Say why these examples have no answer."""
        self._refuse(bundle.number, start, end, refusal_of(why))
        self._forget(bundle)

    def _forget(self, bundle: Bundle) -> None:
        if bundle.is_done:
            self._open.pop(bundle.number, None)

    def _refuse(self, number: int, start: int, end: int, refusal: RefusalError | None) -> None:
        kind = "" if refusal is None else type(refusal).__name__
        retry_after_s = None if refusal is None else refusal.retry_after_s
        self._refusals.append(FrontRefusal(number, start, end, kind, str(refusal or ""), retry_after_s))
        self._round.expect()

    def _send(self) -> None:
        wait_s = hold_s(self._cluster.least_backlog_s) if self._has_taken else 0.0
        message = Answers(
            answers=self._answers, refusals=self._refusals, taken=self._has_taken, hold_s=wait_s
        )
        self._answers, self._refusals, self._has_taken = [], [], False
        self._to_front(message)


def _rows(calls: FrontCalls, count: int, model: ServedModel) -> Sequence[Rows]:
    """Return the inputs of all calls, wherever they lie."""
    if not calls.pieces:
        return [rows_of(calls.inputs, count)]
    sizes = [one.row_bytes for one in model.spec.inputs]
    return [Rows(piece.rows, sizes, offsets=piece.offsets) for piece in calls.pieces]


class CallBatch(Protocol):
    """A bundle that is with the gateway."""

    number: int

    def message(self, arena: InputArena | None) -> FrontCalls:
        """Write the bundle for the gateway."""

    def answered(self, start: int, raws: Sequence[memoryview], receipts: Sequence[Receipt]) -> None:
        """Give calls the answer to the examples from `start` on."""

    def refused(self, start: int, end: int, error: SlimError) -> None:
        """Tell calls why these examples have no answer."""


class RequestSource(Protocol):
    """Reads requests whose heads are known, and keeps them until they can be passed on."""

    def bundles(self, first_number: int) -> "Sequence[CallBatch]":
        """Take all that have come."""

    def hold(self, seconds: float) -> None:
        """Let requests gather for this long before they are announced."""


class CallBatcher:
    """One end of the way to the gateway, which may be in this process or in another.

    Calls that come while the gateway has not taken those before go together with the next.
    """

    def __init__(self, send: Callable[[Calls], None], arena: InputArena | None) -> None:
        self.arena, self._send = arena, send
        self.lines: list[RequestSource] = []
        self.is_taken = True
        """Whether the gateway has taken all calls that were passed on."""
        self._next = 0
        self._bundles: dict[int, CallBatch] = {}
        self._pending: list[PendingCall] = []  # not passed on yet
        self._left: list[Left] = []
        self._refused: Counter[int] = Counter()  # examples refused without asking, by model
        self._round = NextRound(self._pass_on)

    async def run(self, call: Call, arrived_s: float) -> Answered:
        """Pass a call on and wait for its answer; raise what the gateway says if there is none."""
        pending = PendingCall(call, arrived_s, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self.expect()
        try:
            return await pending.future
        finally:
            if (bundle := pending.bundle) is not None:
                if pending.future.cancelled():
                    self.leave(bundle.number, pending.parts.start, pending.parts.end)
                if bundle.leave(self.arena):
                    self.done(bundle.number)
            pending.bundle = None  # else call, bundle and error hold each other, with all inputs
            del pending, bundle

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
                why: SlimError = ModelsChangedError("the model was replaced")
                if one.kind:
                    why = REFUSALS[one.kind](one.why, one.retry_after_s)
                bundle.refused(one.start, one.end, why)
        if message.taken:
            self.is_taken = True
            for line in self.lines:
                line.hold(message.hold_s)
            self._round.expect()

    def _pass_on(self) -> None:
        """Pass on what has come since the gateway took the calls before it."""
        bundles: list[CallBatch] = []
        if self.is_taken:
            for line in self.lines:
                bundles += line.bundles(self._next + len(bundles))
            pending, self._pending = [one for one in self._pending if not one.future.done()], []
            bundles += bundled(pending, self._next + len(bundles))
            self._next += len(bundles)
            self.is_taken = not bundles
            self._bundles |= {one.number: one for one in bundles}
        left, self._left = self._left, []
        if bundles or left or self._refused:
            refused = list(self._refused.items())
            self._refused.clear()
            calls = [one.message(self.arena) for one in bundles]
            self._send(Calls(calls=calls, left=left, refused=refused))


def local_link(service: InferenceService, cluster: "LiveCluster") -> CallBatcher:
    """Return a link to the gateway of this process: messages are passed as they are."""

    def received(message: ToFront) -> None:
        assert isinstance(message, Answers)
        link.received(message)

    link = CallBatcher(lambda calls: session.received(calls), cluster.arena)
    session = FrontSession(service, cluster, received)
    return link
