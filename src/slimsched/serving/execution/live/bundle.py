"""A bundle: calls of several clients on the same terms, which a front process passed on together.

To the gateway it is like one call with many examples, so that it costs as little. But its clients do not wait
for one another: each part is told as soon as it is answered or dropped.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.execution.live.parcel import Answered, Arrays, DroppedError, OpenExamples, Rows


class BundleWaiter(Protocol):
    """Whoever passed the calls on."""

    def answered(self, start: int, answered: Answered) -> None:
        """Tell it the answer to the examples from `start` on."""

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """Tell it that these examples have no answer."""


class Bundle(OpenExamples):
    """Examples of several calls with consecutive request ids."""

    def __init__(
        self,
        first: int,
        rows: Sequence[Rows],
        count: int,
        arrival_s: float,
        listener: BundleWaiter,
        model: int = 0,
        deadline_s: float = NEVER_S,
    ) -> None:
        super().__init__(first, rows, count, arrival_s, model, deadline_s)
        self._listener, self._told, self._is_done = listener, bytearray(count), False
        self._came: list[tuple[int, Arrays]] = []  # outputs that nobody was told yet

    @property
    def is_done(self) -> bool:
        """Whether nobody waits any more."""
        return self._is_done

    def give_up(self) -> None:
        """Nobody waits any more."""
        super().give_up()
        self._is_done = True

    def answered(self, start: int, count: int) -> None:
        """Tell the answer to these examples."""
        if self._tell(start, count):
            outputs, receipts = self._take_outputs(start, count), self.receipts(start, start + count)
            self._listener.answered(start, Answered(outputs=outputs, receipts=receipts))

    def put_outputs(self, start: int, outputs: Arrays) -> None:
        """Keep outputs as they came: most are told at once, and need not be copied."""
        self._came.append((start, outputs))

    def _take_outputs(self, start: int, count: int) -> Arrays:
        """Return the outputs of these examples; what came last counts."""
        for place in range(len(self._came) - 1, -1, -1):
            at, outputs = self._came[place]
            if at == start and len(outputs[0]) == count:
                del self._came[place]
                return outputs
            if at < start + count and start < at + len(outputs[0]):
                break
        for at, outputs in self._came:
            super().put_outputs(at, outputs)
        self._came.clear()
        assert self._outputs is not None
        return tuple([one[start : start + count] for one in self._outputs])

    def dropped(self, start: int, count: int, why: DroppedError) -> None:
        """Tell why these examples have no answer."""
        if self._tell(start, count):
            self._listener.dropped(start, count, why)

    def fail(self, why: DroppedError) -> bool:
        """Tell why all that is left has no answer; return whether anything was left."""
        if self._is_done:
            return False
        start = 0
        for is_told, flags in groupby(bytes(self._told)):
            count = len(list(flags))
            if not is_told:
                self.dropped(start, count, why)
            start += count
        return True

    def _tell(self, start: int, count: int) -> bool:
        """Note that these examples are told; return False if nobody waits for them."""
        if self._is_done:
            return False
        self._told[start : start + count] = b"\1" * count
        self._left -= count
        if not self._left:
            self.give_up()
        return True
