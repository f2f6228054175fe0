"""The gateway's side of whoever passes calls on: takes the calls, and gives the answers.

These are front processes, or the express line of this process.
What comes and goes in one round of the event loop travels in one message.
"""

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from msgspec import Struct

from slimsched.serving.api.front_message import (
    Answers,
    Calls,
    FrontAnswer,
    FrontCalls,
    FrontRefusal,
    Models,
    Regions,
)
from slimsched.serving.api.limits import Limits, shared
from slimsched.serving.api.refusal import RefusalError, TooLate, TooMany
from slimsched.serving.api.service import InferenceService, refusal_of, too_late
from slimsched.serving.domain.bundling import hold_s
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.live.calls import Answered, Bundle, DroppedError, Rows, cut, rows_of
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.wire import NextRound


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
