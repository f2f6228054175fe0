"""A front process's desk: hands calls over to the gateway and waits for the answers."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np

from slimsched.models.quality import QualityTable
from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.call import Call
from slimsched.serving.api.call_bundle import AskedCall
from slimsched.serving.api.front_message import (
    Answers,
    Calls,
    FrontDrain,
    Models,
    Regions,
    RegionsKnown,
    ToFront,
)
from slimsched.serving.api.ledger import Ledger
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.model_face import ModelFace, find_face
from slimsched.serving.api.receipt import InferenceResult, write_receipt
from slimsched.serving.api.shared_memory import SharedMemory
from slimsched.serving.api.tally import Tally
from slimsched.serving.domain.model import ModelEntry, ServedModel
from slimsched.serving.live.calls import Answered
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import FrameConnection, LoopLag, Ping, Pong, Wakefulness
from slimsched.serving.scenario.files import read_model

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
        self.bundles = BundleLink(self._pass_on, arena)
        self.when_models_change: list[Callable[[], None]] = []
        self._lag, self._awake = LoopLag(), Wakefulness()

    def use(self, connection: FrameConnection) -> None:
        """Talk to the gateway over this connection."""
        self._connection = connection

    def _pass_on(self, calls: Calls) -> None:
        self._connection.send(calls)
        self._awake.expect()

    def received(self, connection: FrameConnection, message: ToFront) -> None:
        """Take a message of the gateway."""
        match message:
            case Answers():
                self.bundles.received(message)
                if not self.bundles.is_waiting:
                    self._awake.rest()
            case Models(entries=entries, accuracies=accuracies, limits=limits):
                models = map(_model, entries, accuracies)
                self._faces = {model.name: ModelFace(model) for model in models}
                self.limits = limits
                self.ledger.proxies = limits.proxy_addresses
                if self.arena is not None:
                    self.arena.limit_bytes = limits.held_bytes
                for tell in self.when_models_change:
                    tell()
                self.introduced.set()
            case Regions():
                self.memory.follow(message.entries)
                connection.send(RegionsKnown(change=message.change))
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
        future: asyncio.Future[Answered] = self._loop.create_future()
        asked = AskedCall(call, monotonic() - self._lag.seconds, future)
        self.bundles.ask(asked)
        try:
            answered = await future
        finally:
            if (bundle := asked.bundle) is not None:
                if future.cancelled():
                    self.bundles.leave(bundle.number, asked.start, asked.end)
                if bundle.leave(self.arena):
                    self.bundles.done(bundle.number)
        self.tally.count_examples(answered.receipts)
        quality = call.face.model.quality.accuracy
        parameters = write_receipt(call.face.spec, answered.receipts, quality, call.terms)
        return InferenceResult(outputs=answered.outputs, parameters=parameters)


def _model(entry: ModelEntry, accuracies: Sequence[float]) -> ServedModel:
    """Read a model as the gateway knows it, without its code and weights."""
    model = read_model(entry.source, rated=False)
    quality = QualityTable(model.tree, name="the gateway's", accuracy=np.array(accuracies))
    return model.with_quality(quality).numbered(entry.number)
