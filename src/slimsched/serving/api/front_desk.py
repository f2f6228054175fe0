"""The gateway's side of the front processes: takes their calls, and gives them answers.

What comes and goes in one round of the event loop travels in one message.
"""

import asyncio

from slimsched.serving.api.front_message import (
    Answers,
    Calls,
    FrontAnswer,
    FrontCall,
    FrontRefusal,
    Models,
    Regions,
)
from slimsched.serving.api.limits import Limits, shared
from slimsched.serving.api.refusal import RefusalError
from slimsched.serving.api.service import InferenceService, refusal_of, too_late
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.execution.live.cluster import LiveCluster
from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.next_round import NextRound
from slimsched.serving.execution.live.parcel import Answered, DroppedError, Parcel


class FrontDesk:
    """Serves one front process, from its first call until its connection closes."""

    def __init__(self, service: InferenceService, cluster: LiveCluster, connection: FrameConnection) -> None:
        self._service, self._cluster, self._connection = service, cluster, connection
        self._open: dict[int, _Waiting] = {}
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
        if message.calls:
            cluster = self._cluster
            models = {model.number: model for model in cluster.models}
            for call in message.calls:
                try:
                    self._take(call, models.get(call.model))
                except RefusalError as refusal:
                    self._refuse(call.number, refusal)
        for number in message.left:
            if (waiting := self._open.pop(number, None)) is not None:
                self._cluster.cancel(waiting.parcel)

    def close(self) -> None:
        """The front is gone: nobody waits for its calls."""
        for waiting in list(self._open.values()):
            self._cluster.cancel(waiting.parcel)
        self._open.clear()
        for change in list(self._unknown):
            self.regions_known(change)

    def _take(self, call: FrontCall, model: ServedModel | None) -> None:
        number, offsets = call.number, call.offsets
        if model is None:
            self._refuse(number, None)
            return
        arrived_s = self._cluster.since_zero_s(call.arrived_s)
        self._service.admit(model, call.terms, call.count, arrived_s)
        waiting = self._open[number] = _Waiting(self, number)
        waiting.parcel = parcel = self._cluster.submit(
            self._inputs(call, model) if offsets else call.inputs,
            call.terms,
            count=call.count,
            model=model.number,
            waiter=waiting,
            arrived_s=arrived_s,
        )
        if offsets:
            parcel.lies_at(offsets)

    def _inputs(self, call: FrontCall, model: ServedModel) -> list[memoryview]:
        """Return the bytes of each input where they lie in the arena."""
        arena = self._cluster.arena
        assert arena is not None
        sizes = [call.count * one.row_bytes for one in model.spec.inputs]
        return [arena.view(offset, size) for offset, size in zip(call.offsets, sizes, strict=True)]

    def answer(self, waiting: "_Waiting", answered: Answered) -> None:
        """Give the answer to a call."""
        parcel, number = waiting.parcel, waiting.number
        del self._open[number]
        if parcel.deadline_s < NEVER_S and self._cluster.now_s > parcel.deadline_s:
            self._refuse(number, too_late())
            return
        outputs = [one.data for one in answered.outputs]
        self._answers.append(FrontAnswer(number, outputs, answered.receipts))
        self._round.expect()

    def refuse(self, waiting: "_Waiting", why: DroppedError) -> None:
        """Say why a call has no answer."""
        self._open.pop(waiting.number, None)
        self._refuse(waiting.number, refusal_of(why))

    def _refuse(self, number: int, refusal: RefusalError | None) -> None:
        kind = "" if refusal is None else type(refusal).__name__
        retry_after_s = None if refusal is None else refusal.retry_after_s
        self._refusals.append(FrontRefusal(number, kind, str(refusal or ""), retry_after_s))
        self._round.expect()

    def _send(self) -> None:
        message = Answers(answers=self._answers, refusals=self._refusals)
        self._answers, self._refusals = [], []
        self._connection.send(message)


class _Waiting:
    """A call of a front, as the cluster tells its answer."""

    __slots__ = ("_desk", "_is_done", "number", "parcel")
    parcel: Parcel

    def __init__(self, desk: FrontDesk, number: int) -> None:
        self._desk, self._is_done, self.number = desk, False, number

    def done(self) -> bool:
        return self._is_done

    def set_result(self, answered: Answered, /) -> None:
        self._is_done = True
        self._desk.answer(self, answered)

    def set_exception(self, why: DroppedError, /) -> None:
        self._is_done = True
        self._desk.refuse(self, why)

    def cancel(self) -> None:
        self._is_done = True
