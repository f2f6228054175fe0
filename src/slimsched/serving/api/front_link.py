"""A front process's desk: hands calls over to the gateway and waits for the answers."""

import asyncio
from collections.abc import Sequence
from time import monotonic

import numpy as np

from slimsched.kernel.errors import SlimError
from slimsched.models.arrays import NUMPY
from slimsched.models.quality import QualityTable
from slimsched.serving.api import refusal as refusals
from slimsched.serving.api.call import Call
from slimsched.serving.api.desk import ModelsChangedError
from slimsched.serving.api.front_message import (
    Answers,
    Calls,
    FrontAnswer,
    FrontCall,
    FrontDrain,
    FrontRefusal,
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
from slimsched.serving.execution.live.input_arena import LEAST_BYTES, InputArena
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
        self._next = 0
        self._waiting: dict[int, asyncio.Future[FrontAnswer]] = {}
        self._calls: list[FrontCall] = []
        self._left: list[int] = []
        self._round, self._lag = NextRound(self._send), LoopLag()

    def use(self, connection: FrameConnection) -> None:
        """Talk to the gateway over this connection."""
        self._connection = connection

    def received(self, connection: FrameConnection, message: ToFront) -> None:
        """Take a message of the gateway."""
        match message:
            case Answers(answers=answers, refusals=refused):
                for answer in answers:
                    if (waiter := self._waiting.get(answer.number)) is not None and not waiter.done():
                        waiter.set_result(answer)
                for one in refused:
                    if (waiter := self._waiting.get(one.number)) is not None and not waiter.done():
                        waiter.set_exception(_error_of(one))
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
        self._next += 1
        number, model = self._next, call.face.model.number
        laid, own = self._lay(call)
        given = () if laid else [memoryview(raw) for raw in call.inputs]
        arrived_s = monotonic() - self._lag.seconds
        self._calls.append(FrontCall(number, model, call.count, arrived_s, given, laid, call.terms))
        self._round.expect()
        waiter = self._waiting[number] = self._loop.create_future()
        try:
            answer = await waiter
        except asyncio.CancelledError:
            self._left.append(number)
            self._round.expect()
            raise
        finally:
            del self._waiting[number]
            if own is not None and self.arena is not None:
                self.arena.give_back(own)  # a server may still read it, for a call that nobody waits for
        self.tally.count_examples(answer.receipts)
        return _result(call, answer)

    def _lay(self, call: Call) -> tuple[list[int], memoryview | None]:
        """Return where large inputs lie in the arena, and the room that was taken for them, if any."""
        arena, inputs = self.arena, [memoryview(raw) for raw in call.inputs]
        if arena is None or sum(map(len, inputs)) < LEAST_BYTES:
            return [], None
        offsets = [arena.offset(view) for view in inputs]
        own = None
        if None in offsets:
            if (laid := arena.put(inputs)) is None:
                return [], None
            offsets, own = [arena.offset(view) for view in laid], laid[0]
        return [offset for offset in offsets if offset is not None], own

    def _send(self) -> None:
        message = Calls(calls=self._calls, left=self._left)
        self._calls, self._left = [], []
        self._connection.send(message)


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


def _result(call: Call, answer: FrontAnswer) -> InferenceResult:
    specs, count = call.face.spec.outputs, call.count
    outputs = tuple(
        [
            np.frombuffer(raw, NUMPY[spec.datatype]).reshape(count, *spec.shape)
            for raw, spec in zip(answer.outputs, specs, strict=True)
        ]
    )
    parameters = write_receipt(call.face.spec, answer.receipts, call.face.model.quality.accuracy, call.terms)
    return InferenceResult(outputs=outputs, parameters=parameters)
