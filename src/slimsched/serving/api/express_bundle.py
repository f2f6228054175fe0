"""A bundle of express requests: they have one head, and were read without Python."""

from collections.abc import Sequence
from typing import Protocol

from slimsched.core.config import SlimError
from slimsched.serving.api.call_bundle import AskedCall
from slimsched.serving.api.desk import ModelsChangedError
from slimsched.serving.api.front_message import FrontCalls
from slimsched.serving.api.known_head import KnownHead
from slimsched.serving.api.model_face import Outputs
from slimsched.serving.live.calls import Answered, Receipt
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import InputPiece


class ExpressDesk(Protocol):
    """Where the requests came from, and where their answers go."""

    def write(
        self,
        bundle: "ExpressBundle",
        places: list[int],
        receipt: Receipt,
        since_s: list[float],
        rows: list[bytes],
        starts: list[int],
    ) -> None:
        """Answer requests on one receipt, each `since_s` after the first; their rows begin at `starts`."""

    def answer(self, bundle: "ExpressBundle", place: int, answered: Answered) -> None:
        """Send the answer to one request."""

    def refuse(self, bundle: "ExpressBundle", places: list[int], error: SlimError) -> None:
        """Tell some requests why they have no answer."""

    def read_again(self, bundle: "ExpressBundle", place: int) -> None:
        """Read a request anew: its model was replaced."""

    def end(self, bundle: "ExpressBundle") -> None:
        """Forget a bundle: nobody waits for it."""


class ExpressBundle:
    """Requests in the order in which they came; the one at place p has the examples from p × count on."""

    def __init__(
        self,
        number: int,
        group: int,
        known: KnownHead,
        tokens: list[int],
        arrived_s: list[float],
        inputs: Sequence[memoryview],
        desk: ExpressDesk,
        room: memoryview | None = None,
    ) -> None:
        """`room` is what the inputs take of the arena, if they lie there."""
        self.number, self.group, self.known, self.tokens, self.arrived_s = (
            number,
            group,
            known,
            tokens,
            arrived_s,
        )
        self.room, self._inputs, self._desk = room, inputs, desk
        self._is_open = [True] * len(tokens)
        self._open = len(tokens)
        self._parted: dict[int, AskedCall] = {}  # requests whose examples were not answered together

    def message(self, arena: InputArena | None) -> FrontCalls:
        """Write the bundle for the gateway."""
        known, counts = self.known, [self.known.count] * len(self.tokens)
        inputs, pieces = self._inputs, list[InputPiece]()
        if self.room is not None and arena is not None:
            offsets = [offset for raw in inputs if (offset := arena.offset(raw)) is not None]
            inputs, pieces = [], [InputPiece(sum(counts), offsets)]
        self._inputs = ()
        return FrontCalls(
            self.number, known.model, counts, self.arrived_s[0], inputs, pieces, known.call.terms
        )

    def answered(self, start: int, raws: Sequence[memoryview], receipts: Sequence[Receipt]) -> None:
        """Answer the requests whose examples are all among these; others wait for the rest."""
        size, at = self.known.count, start
        outputs = self.known.arrays(raws, sum([receipt.examples for receipt in receipts]))
        rows = self.known.rows(outputs)
        for receipt in receipts:
            end = at + receipt.examples
            self._answer_whole(range(-(-at // size), end // size), receipt, rows, start)
            at = end
        borders, at = set[int](), start
        for receipt in receipts:
            borders |= {edge // size for edge in (at, at + receipt.examples) if edge % size}
            at += receipt.examples
        for place in sorted(borders):
            self._answer_part(place, start, outputs, receipts)
        self._check_end()

    def refused(self, start: int, end: int, error: SlimError) -> None:
        """Tell requests why they have no answer, or read them again if their model was replaced."""
        size = self.known.count
        places = [place for place in range(start // size, -(-end // size)) if self._close(place)]
        if isinstance(error, ModelsChangedError):
            for place in places:
                self._desk.read_again(self, place)
        elif places:
            self._desk.refuse(self, places, error)
        self._check_end()

    def leave(self, place: int) -> bool:
        """The client has left; return whether it still waited."""
        left = self._close(place)
        self._check_end()
        return left

    def _answer_whole(self, places: range, receipt: Receipt, rows: list[bytes], start: int) -> None:
        """Answer requests whose examples all went the same way."""
        answered = [place for place in places if self._close(place)]
        if answered:
            size, arrived_s = self.known.count, self.arrived_s
            since_s = [arrived_s[place] - arrived_s[0] for place in answered]
            starts = [place * size - start for place in answered]
            self._desk.write(self, answered, receipt, since_s, rows, starts)

    def _answer_part(self, place: int, start: int, outputs: Outputs, receipts: Sequence[Receipt]) -> None:
        """Keep what has come of a request, and answer it after the last part."""
        if not self._is_open[place]:
            return
        asked = self._parted.get(place)
        if asked is None:
            asked = AskedCall(self.known.call, self.arrived_s[place], _Whole(self, place))
            self._parted[place] = asked
            asked.start = place * self.known.count
        asked.take(start, list(outputs), receipts, self.arrived_s[place] - self.arrived_s[0])

    def complete(self, place: int, answered: Answered) -> None:
        """Answer a request whose last part has come."""
        if self._close(place):
            self._desk.answer(self, place, answered)

    def _close(self, place: int) -> bool:
        """Note that a request is answered; return False if it was before."""
        was_open, self._is_open[place] = self._is_open[place], False
        self._open -= was_open
        return was_open

    def _check_end(self) -> None:
        if not self._open:
            self._open = -1  # once
            self._desk.end(self)


class _Whole:
    """Waits for all parts of a request."""

    def __init__(self, bundle: ExpressBundle, place: int) -> None:
        self._bundle, self._place = bundle, place

    def done(self) -> bool:
        """Whether nobody waits; the bundle knows."""
        return False

    def set_result(self, answered: Answered) -> None:
        """Answer the request."""
        self._bundle.complete(self._place, answered)

    def set_exception(self, error: SlimError) -> None:
        """Not used: the bundle refuses requests itself."""
