"""A front process's desk: hands calls over to the gateway and waits for the answers."""

import asyncio
from collections.abc import Sequence
from time import monotonic

import numpy as np

from slimsched.kernel.errors import SlimError
from slimsched.models.quality import QualityTable
from slimsched.serving.api import refusal as refusals
from slimsched.serving.api.call import Call
from slimsched.serving.api.call_bundle import AskedCall, CallBundle, bundled
from slimsched.serving.api.desk import ModelsChangedError
from slimsched.serving.api.front_message import (
    Answers,
    Calls,
    FrontDrain,
    FrontRefusal,
    Left,
    Models,
    Regions,
    RegionsKnown,
    ToFront,
)
from slimsched.serving.api.ledger import Ledger
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.model_face import ModelFace, find_face
from slimsched.serving.api.receipt import InferenceResult, write_receipt
from slimsched.serving.api.refusal import RefusalError, Unavailable
from slimsched.serving.api.shared_memory import SharedMemory
from slimsched.serving.api.tally import Tally
from slimsched.serving.domain.model_change import ModelEntry
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.input_arena import InputArena
from slimsched.serving.execution.live.loop_lag import LoopLag
from slimsched.serving.execution.live.messages import Ping, Pong
from slimsched.serving.execution.live.next_round import NextRound
from slimsched.serving.execution.model_source import read_model

REPORT_S = 0.1
"""How often a front hands its counts over to the gateway."""


class FrontLink:
    """Numbers the calls, keeps what the gateway must read of them, and counts responses for it."""

    passes_on = True
    """Everything but inference is answered by the gateway."""

    def __init__(self, arena: InputArena | None, *, shared_memory: bool = False) -> None:
        self.arena, self.ledger, self.limits, self.tally = arena, Ledger(), Limits(), Tally()
        self.memory = SharedMemory(self.ledger, is_allowed=shared_memory)
        self.introduced, self.drained = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._faces: dict[str, ModelFace] = {}
        self._next, self._is_taken = 0, True
        self._bundles: dict[int, CallBundle] = {}
        self._asked: list[AskedCall] = []  # not passed on yet
        self._left: list[Left] = []
        self._round, self._lag = NextRound(self._send), LoopLag()

    def use(self, connection: FrameConnection) -> None:
        """Talk to the gateway over this connection."""
        self._connection = connection

    def received(self, connection: FrameConnection, message: ToFront) -> None:
        """Take a message of the gateway."""
        match message:
            case Answers(answers=answers, refusals=refused, taken=taken):
                for answer in answers:
                    if (bundle := self._bundles.get(answer.number)) is not None:
                        bundle.answered(answer.start, answer.outputs, answer.receipts)
                for one in refused:
                    self._refuse(one)
                if taken:
                    self._is_taken = True
                    if self._asked or self._left:
                        self._round.expect()
            case Models(entries=entries, accuracies=accuracies, limits=limits):
                models = map(_model, entries, accuracies)
                self._faces = {model.name: ModelFace(model) for model in models}
                self.limits = limits
                if self.arena is not None:
                    self.arena.limit_bytes = limits.held_bytes
                self.introduced.set()
            case Regions(entries=regions, change=change):
                self.memory.follow(regions)
                connection.send(RegionsKnown(change=change))
            case FrontDrain():
                self.drained.set()
            case Ping():
                connection.send(Pong())

    def face(self, name: str, version: str = "") -> ModelFace:
        """Find a model by name; refuse one, or a version, that this server has not."""
        return find_face(self._faces, name, version)

    async def report_forever(self) -> None:
        """Hand the counts over to the gateway regularly."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.report()

    def report(self) -> None:
        """Hand the counts over to the gateway."""
        self._connection.send(self.tally.take())

    async def infer(self, call: Call) -> InferenceResult:
        """Let the gateway run a call, or raise what it says."""
        asked = AskedCall(call, monotonic() - self._lag.seconds, self._loop.create_future())
        self._asked.append(asked)
        if self._is_taken:
            self._round.expect()
        try:
            answered = await asked.future
        finally:
            if (bundle := asked.bundle) is not None:
                if asked.future.cancelled():
                    self._leave(bundle.number, asked)
                if bundle.leave(self.arena):
                    del self._bundles[bundle.number]
        self.tally.count_examples(answered.receipts)
        quality = call.face.model.quality.accuracy
        parameters = write_receipt(call.face.spec, answered.receipts, quality, call.terms)
        return InferenceResult(outputs=answered.outputs, parameters=parameters)

    def _leave(self, number: int, asked: AskedCall) -> None:
        """Tell the gateway that nobody waits for a call."""
        self._left.append(Left(number, asked.start, asked.end))
        self._round.expect()

    def _refuse(self, refused: FrontRefusal) -> None:
        bundle = self._bundles.get(refused.number)
        for asked in bundle.between(refused.start, refused.end) if bundle is not None else ():
            if not asked.future.done():
                asked.future.set_exception(_error_of(refused))

    def _send(self) -> None:
        """Pass on what has come since the gateway took the calls before it."""
        bundles: list[CallBundle] = []
        if self._is_taken:
            bundles = bundled([one for one in self._asked if not one.future.done()], self._next)
            self._asked, self._is_taken = [], not bundles
            self._next += len(bundles)
            self._bundles |= {one.number: one for one in bundles}
        left, self._left = self._left, []
        if bundles or left:
            self._connection.send(Calls(calls=[one.message(self.arena) for one in bundles], left=left))


def _model(entry: ModelEntry, accuracies: Sequence[float]) -> ServedModel:
    """Read a model as the gateway knows it, without its code and weights."""
    model = read_model(entry.source, rated=False)
    quality = QualityTable(model.tree, name="the gateway's", accuracy=np.array(accuracies))
    return model.with_quality(quality).numbered(entry.number)


def _error_of(refused: FrontRefusal) -> SlimError:
    """Return the refusal as the gateway raised it."""
    if not refused.kind:
        return ModelsChangedError("the model was replaced")
    kind: type[RefusalError] = getattr(refusals, refused.kind, Unavailable)
    error = kind.__new__(kind)
    RefusalError.__init__(error, refused.why)
    error.retry_after_s = refused.retry_after_s
    return error
