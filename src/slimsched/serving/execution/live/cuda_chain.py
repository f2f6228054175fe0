"""A batch on a CUDA device that runs one or several segments, launched at once.

The host starts all segments one after the other on one stream and does not wait in between, so the device
never waits for the host. Each segment runs in the slot of its own instance. Segments that are run often in
this row have one graph together, in the first slot; then the others only stay free for this batch.
"""

from collections.abc import Callable, Sequence

import torch

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.request import Key
from slimsched.serving.execution.live.cuda_slot import Captured, CudaSlot


class CudaChain:
    """Segments that are running; keeps the inputs alive until they are read."""

    __slots__ = ("_ends", "_give_back", "_passed", "_pieces", "_slots", "_whole", "legs_s")

    def __init__(
        self,
        legs: Sequence[Key],
        slots: Sequence[CudaSlot],
        pieces: Sequence[Tensors],
        give_back: Callable[[Sequence[CudaSlot]], None],
        *,
        ends: bool,
        keep: bool,
    ) -> None:
        """Launch everything. The last segment `ends` a plan, or its result stays on the device."""
        self._slots, self._pieces, self._give_back, self._ends = slots, pieces, give_back, ends
        self._passed: list[Tensors] = []
        self._whole: Captured | None = None
        self.legs_s: tuple[float, ...] = ()
        """How long each segment took; empty where they had one graph."""
        stream = slots[0].stream
        before = torch._C._cuda_getCurrentStream(stream.device_index)  # torch.cuda's own calls take longer
        torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
        try:
            self._launch(legs, sum([piece[0].shape[0] for piece in pieces]), keep=keep)
        except BaseException:
            stream.synchronize()  # so that others can have the slots
            raise
        finally:
            torch._C._cuda_setStream(*before)

    def _launch(self, legs: Sequence[Key], size: int, *, keep: bool) -> None:
        slots, stream = self._slots, self._slots[0].stream
        bucket, last = slots[0].copy_in(legs[0], self._pieces), len(legs) - 1
        self._whole = slots[0].chained(tuple(legs), bucket) if last and not keep else None
        if self._whole is not None:
            self._whole.graph.replay()
            self._end(legs[-1], self._whole.outputs, size)
            slots[-1].done.record(stream)
            return
        slots[0].began.record(stream)
        for at, (key, slot) in enumerate(zip(legs, slots, strict=True)):
            rows = slot.forward(key, bucket)
            if at < last:
                slots[at + 1].take_over(legs[at + 1], bucket, rows)
            if at == last:
                self._end(key, rows, size)
            elif keep:
                self._passed.append(tuple([one[:size].clone() for one in rows]))
            slot.done.record(stream)

    def _end(self, key: Key, rows: Tensors, size: int) -> None:
        """Copy the last result to where the next batch does not overwrite it, on the host if a plan ends."""
        if self._ends:
            self._passed.append(self._slots[-1].to_host(key, rows, size))
        else:
            self._passed.append(tuple([one[:size].clone() for one in rows]))

    def ready(self) -> bool:
        """Whether the device is done."""
        done: bool = self._slots[-1].done.query()  # type: ignore[no-untyped-call]
        return done

    def wait(self) -> list[Tensors]:
        """Wait for the device, free the slots and return the result of the last segment.

        With `keep`, the results of the segments before stand before it.
        """
        try:
            self._slots[-1].done.synchronize()
            if len(self._slots) > 1 and self._whole is None:
                self.legs_s = self._times_s()
            if self._ends:
                self._passed[-1] = tuple([rows.clone() for rows in self._passed[-1]])
            return self._passed
        finally:
            self._give_back(self._slots)

    def _times_s(self) -> tuple[float, ...]:
        """Return how long the device worked for each segment."""
        ends = [slot.done for slot in self._slots]
        begins = [self._slots[0].began, *ends[:-1]]
        return tuple([1e-3 * begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)])
