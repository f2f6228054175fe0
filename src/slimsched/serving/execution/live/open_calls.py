"""The calls under way: finds the call of each example, and keeps its receipts and outputs."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from slimsched.models.spec import NUMPY, TensorSpec
from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.request import DropReason, Request
from slimsched.serving.execution.live.parcel import DroppedError, OpenExamples, Rows
from slimsched.serving.gateway.messages import SegmentFinished, SendBlock

Stretch = tuple[int, OpenExamples, int, int]
"""Neighbours of one call among the examples of some requests: start there, the call, start and end in it."""


class OpenCalls:
    """Calls with examples that have neither been answered nor dropped, in the order of their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are those of the servers."""
        self._names = names
        self._firsts: list[int] = []  # number of each call's first example
        self._calls: list[OpenExamples] = []
        self._examples = 0

    def __len__(self) -> int:
        return self._examples

    def add(self, call: OpenExamples) -> None:
        """Keep a call, whose numbers follow those of all before it, until its last example has left."""
        self._firsts.append(call.first)
        self._calls.append(call)
        self._examples += call.count

    @property
    def calls(self) -> tuple[OpenExamples, ...]:
        """Each call once."""
        return tuple(self._calls)

    def still_open(self, numbers: range) -> tuple[int, ...]:
        """Return which of these examples are still under way."""
        found: list[Stretch] = []
        self._look(numbers.start, numbers.stop, 0, found)
        return tuple([call.first + at for _, call, start, end in found for at in range(start, end)])

    def stretches(self, requests: Sequence[Request]) -> list[Stretch]:
        """List runs of neighbours of one call that are still under way."""
        found: list[Stretch] = []
        row, first, end = 0, requests[0].id, requests[0].id
        for request in requests:
            if request.id != end:
                self._look(first, end, row, found)
                row, first = row + end - first, request.id
            end = request.id + request.count
        self._look(first, end, row, found)
        return found

    def _look(self, first: int, end: int, row: int, found: list[Stretch]) -> None:
        """Add the stretches from `first` to `end`, whose first example has this row."""
        calls, place = self._calls, bisect_right(self._firsts, first) - 1
        while place < len(calls):
            if place >= 0:
                call = calls[place]
                base = call.first
                if base >= end:
                    return
                start, stop = (first if first > base else base) - base, min(end, base + call.count) - base
                if start < stop:
                    ways = call.here(start, stop)
                    found += [(row + base + begin - first, call, begin, after) for begin, after in ways]
            place += 1

    def sent(self, command: SendBlock) -> list[Rows]:
        """Note why a block goes to its server; return its inputs, unless they lie at a server."""
        block, why, rows = command.block, command.why, list[Rows]()
        segment, legs = block.key.segment, len(block.key.legs)
        runner_up = "" if why is None or why.server < 0 else self._names[why.server]
        for _, call, start, end in self.stretches(block.requests):
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
            for row, call, start, end in self.stretches(block.requests):
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
        place = bisect_right(self._firsts, request.id) - 1
        call = self._calls[place]
        assert call.first <= request.id < call.first + call.count, "it has left before"
        self._examples -= request.count
        if call.left(request.id - call.first, request.count):
            del self._firsts[place], self._calls[place]
        return call
