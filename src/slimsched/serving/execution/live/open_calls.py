"""The calls under way: finds the call of each example, and keeps its receipts and outputs."""

from collections.abc import Sequence

import numpy as np

from slimsched.models.arrays import NUMPY
from slimsched.models.spec import TensorSpec
from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.request import Request
from slimsched.serving.execution.live.parcel import DroppedError, OpenExamples, Rows, stretches
from slimsched.serving.routing.commands import SendBlock
from slimsched.serving.routing.events import SegmentFinished


class OpenCalls:
    """Calls by the number of each of their examples that has neither been answered nor dropped."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are those of the servers."""
        self._names = names
        self._of: dict[int, OpenExamples] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(self, call: OpenExamples) -> None:
        """Keep a call until its last example has left."""
        self._of.update(dict.fromkeys(call.requests, call))

    @property
    def calls(self) -> set[OpenExamples]:
        """Each call once."""
        return set(self._of.values())

    def still_open(self, numbers: range) -> tuple[int, ...]:
        """Return which of these examples are still under way."""
        return tuple([number for number in numbers if number in self._of])

    def sent(self, command: SendBlock) -> list[Rows]:
        """Note why a block goes to its server; return its inputs, unless they lie at a server."""
        block, why, rows = command.block, command.why, list[Rows]()
        segment, legs = block.key.segment, len(block.key.legs)
        runner_up = "" if why is None or why.server < 0 else self._names[why.server]
        for _, call, start, end in stretches(self._of, block.requests):
            for receipt in call.receipts(start, end):
                receipt.reasons = (*receipt.reasons[:segment], *[command.reason] * legs)
                receipt.why, receipt.runner_up = why, runner_up
            if command.source == GATEWAY:
                rows += call.rows(start, end)
        return rows

    def ran(self, finished: SegmentFinished, raw: Sequence[bytes], specs: Sequence[TensorSpec]) -> None:
        """Record a batch on the receipts of its requests, and keep its outputs if there are any."""
        segment, examples = finished.blocks[0].key.segment, finished.examples
        outputs = [
            np.frombuffer(one, NUMPY[spec.datatype]).reshape(examples, *spec.shape)
            for one, spec in zip(raw, specs, strict=bool(raw))
        ]
        servers = (self._names[finished.server],) * (1 + len(finished.ahead))
        energy_j, before = finished.energy_j / examples, 0
        for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
            for row, call, start, end in stretches(self._of, block.requests):
                for receipt in call.receipts(start, end):
                    receipt.servers = (*receipt.servers[:segment], *servers)
                    receipt.queue_s += queue_s
                    receipt.compute_s += finished.busy_s
                    receipt.energy_j += energy_j
                if outputs:
                    rows = slice(before + row, before + row + end - start)
                    call.put_outputs(start, tuple([one[rows] for one in outputs]))
            before += block.examples

    def answered(self, requests: Sequence[Request], now_s: float, energy_source: str) -> None:
        """Tell whoever waits that these requests are answered."""
        for request in requests:
            call = self._close(request)
            call.went(request, now_s, energy_source)
            call.answered(request.id - call.first, request.count)

    def dropped(self, requests: Sequence[Request], reason: DropReason, detail: str) -> None:
        """Tell whoever waits why these requests have no answer."""
        for request in requests:
            call = self._close(request)
            call.dropped(request.id - call.first, request.count, DroppedError(reason, detail))

    def _close(self, request: Request) -> OpenExamples:
        """Note that a request has left; return the call that it belongs to."""
        call = self._of[request.id]
        for number in request.ids:
            del self._of[number]
        call.left(request.count)
        return call
