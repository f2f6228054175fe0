"""Passes calls on to the gateway in bundles, and gives them the answers that come back."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from slimsched.core.config import SlimError
from slimsched.serving.api import refusal as refusals
from slimsched.serving.api.call_bundle import AskedCall, bundled
from slimsched.serving.api.desk import ModelsChangedError
from slimsched.serving.api.front_message import Answers, Calls, FrontCalls, FrontRefusal, Left
from slimsched.serving.api.refusal import RefusalError, Unavailable
from slimsched.serving.live.calls import Receipt
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import NextRound


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
