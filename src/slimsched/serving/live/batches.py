"""Running batches beside the event loop: lanes of threads, the batch itself, and activations that wait.

A lane takes one batch after the other: it gathers the inputs, runs the executor and stores the outputs.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.request import Batch, Block, block_of, each_example, ids_of, split_by
from slimsched.serving.live.executor import Executor, Launched
from slimsched.serving.live.wire import has_many_cores

# -- Batch shapes: the batch sizes that a CPU really runs. A batch is padded to the next of them.
#
# oneDNN makes the kernels of a convolution anew for every batch size. For a whole plan that takes several
# milliseconds, as long as a few examples. Batches of all sizes come in service, so most would pay for it.

FINEST = 16
"""Batches of up to this number of examples run as they are."""


def shape_for(size: int) -> int:
    """Return the size to run a batch at: at most an eighth more than it has.

    Up to 16 examples as they are, then multiples of 2 up to 32, of 4 up to 64, and so on.
    """
    if size <= FINEST:
        return size
    step = 1 << ((size - 1).bit_length() - 4)
    return -(-size // step) * step


# -- Activations that wait on a server for their next segment.


class _Rows:
    """The output of one batch, and the request of each row."""

    __slots__ = ("_places", "requests", "tensors")

    def __init__(self, requests: Sequence[int], tensors: Tensors) -> None:
        self.requests, self.tensors = requests, tensors
        self._places: dict[int, int] | None = None

    def split(self, size: int) -> "tuple[_Rows, _Rows]":
        """Split the output after this many rows."""
        return (
            _Rows(self.requests[:size], tuple([tensor[:size] for tensor in self.tensors])),
            _Rows(self.requests[size:], tuple([tensor[size:] for tensor in self.tensors])),
        )

    def place(self, request: int) -> int:
        if self._places is None:
            self._places = {request: row for row, request in enumerate(self.requests)}
        return self._places[request]


class ActivationStore:
    """Rows of batch outputs by request. A batch that stays together is handed over without a copy.

    Outputs are stored whole under their first request, and split when someone asks for part of one.
    Tensors that go in or out are complete: no device still writes to them.
    """

    def __init__(self) -> None:
        self._whole: dict[int, _Rows] = {}
        self._rows: dict[int, _Rows] = {}
        self._kept: dict[int, dict[int, _Rows]] = {}  # by request, then by number of segments that have run
        self._lock = Lock()  # lanes take and put while the event loop asks

    def __len__(self) -> int:
        return len(self._opened())

    def requests(self) -> list[int]:
        """List the requests whose activations are here."""
        return list(self._opened())

    def put(self, requests: Sequence[int], rows: Tensors) -> None:
        """Store one row per request."""
        if len(requests):
            with self._lock:
                self._whole[requests[0]] = _Rows(requests, rows)

    def keep(self, requests: Sequence[int], segments: int, rows: Tensors) -> None:
        """Keep what these requests gave after N segments, until it is forgotten."""
        kept = _Rows(requests, rows)
        with self._lock:
            for request in requests:
                self._kept.setdefault(request, {})[segments] = kept

    def revive(self, requests: Sequence[int], segments: int) -> None:
        """Store again what was kept after N segments, for those of these requests that have it."""
        with self._lock:
            kept = {request: self._kept.get(request, {}).get(segments) for request in requests}
            self._rows.update({request: rows for request, rows in kept.items() if rows is not None})

    def take(self, requests: Sequence[int]) -> Tensors:
        """Return the rows of these requests, in order, and remove them from the store."""
        return joined(self.take_pieces([requests]))

    def take_pieces(self, parts: Sequence[Sequence[int]]) -> list[Tensors]:
        """Take the rows of several blocks, one block after the other, without joining them."""
        pieces: list[Tensors] = []
        for requests in parts:
            with self._lock:
                if (whole := self._found(requests)) is not None:
                    pieces += [rows.tensors for rows in whole]
                    for rows in whole:
                        del self._whole[rows.requests[0]]
                    continue
            opened = self._opened()
            pieces += _pieces(list(map(opened.pop, requests)), requests)
        return pieces

    def has(self, requests: Sequence[int]) -> bool:
        """Whether the rows of all these requests are here."""
        with self._lock:
            if self._found(requests) is not None:
                return True
        opened = self._opened()
        return all(request in opened for request in requests)

    def forget(self, requests: Sequence[int]) -> None:
        """Remove rows that nobody will ask for."""
        opened = self._opened()
        for request in requests:
            opened.pop(request, None)
        with self._lock:
            for request in requests:
                self._kept.pop(request, None)

    def _found(self, requests: Sequence[int]) -> list[_Rows] | None:
        """Return the whole outputs that hold exactly these requests, one after the other, if there are any.

        The last one may hold more: it is cut in two.
        """
        found, at, end = list[_Rows](), 0, len(requests)
        while at < end:
            rows = self._whole.get(requests[at])
            if rows is None:
                return None
            size = min(len(rows.requests), end - at)
            if requests[at : at + size] != rows.requests[:size]:
                return None
            if size < len(rows.requests):
                rows, rest = rows.split(size)
                self._whole[requests[at]], self._whole[rest.requests[0]] = rows, rest
            found.append(rows)
            at += size
        return found

    def _opened(self) -> dict[int, _Rows]:
        if self._whole:
            with self._lock:
                for rows in self._whole.values():
                    self._rows.update(dict.fromkeys(rows.requests, rows))
                self._whole.clear()
        return self._rows


def _pieces(found: list[_Rows], requests: Sequence[int]) -> list[Tensors]:
    """Cut the rows into pieces; neighbouring rows of one output stay in one piece."""
    pieces, first, start, end = [], found[0], found[0].place(requests[0]), -1
    for rows, request in zip(found, requests, strict=True):
        row = rows.place(request)
        if end >= 0 and (rows is not first or row != end):
            pieces.append(tuple([tensor[start:end] for tensor in first.tensors]))
            first, start = rows, row
        end = row + 1
    pieces.append(tuple([tensor[start:end] for tensor in first.tensors]))
    return pieces


def joined(pieces: Sequence[Tensors]) -> Tensors:
    """Return pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    rows = tuple([torch.cat(tensors) for tensors in zip(*pieces, strict=True)])
    if rows[0].is_cuda:
        torch.cuda.current_stream(rows[0].device).synchronize()
    return rows


class BatchRun(Struct, frozen=True, kw_only=True):
    """The result of a batch: blocks that ran, blocks that failed and why, outputs of complete plans.

    `confidence` and `top` say how sure the model is of each answer, and the class with the largest output.
    `began_s` is on the host's monotonic clock; `legs_s` holds the time of each segment if
    there was more than one.
    """

    done: list[Block]
    failed: list[tuple[Block, str]]
    outputs: list[bytes]
    confidence: tuple[float, ...] = ()
    top: tuple[int, ...] = ()
    began_s: float
    busy_s: float
    legs_s: tuple[float, ...] = ()


FAULTS: Counter[str] = Counter()
"""Batches of this process that went another way than planned, by what happened; the first is logged."""


def _note(fault: str, batch: Batch) -> None:
    """Count a fault that is being handled, and log the first of its kind."""
    FAULTS[fault] += 1
    if FAULTS[fault] == 1:
        told = "a batch of %d was %s; later ones are only counted"
        logging.getLogger("slim.batches").warning(told, batch.size, fault, exc_info=True)


class BatchUnderWay:
    """A batch that an executor has started."""

    def __init__(
        self,
        executor: Executor,
        store: ActivationStore,
        batch: Batch,
        pieces: Sequence[Tensors] | None = None,
    ) -> None:
        """`pieces` are the inputs, if they have been taken from the store already."""
        self._began_s = monotonic()
        self._executor, self._store, self._batch = executor, store, batch
        self._pieces = take_inputs(store, batch) if pieces is None else pieces
        self._passed: list[Tensors] = []  # what each segment gave
        self._launched: Launched | None = None
        try:
            places, keep = (batch.instance, *batch.also), batch.blocks[0].keep
            self._launched = executor.launch(batch.key.legs, self._pieces, places, keep=keep)
        except Exception:  # it is run instead, and if it fails there too, one by one
            _note("not launched", batch)

    @property
    def is_launched(self) -> bool:
        """Whether a device works on it; otherwise `finish` does all the work."""
        return self._launched is not None

    def ready(self) -> bool:
        """Whether `finish` need not wait for a device; it says what is wrong with one that fails."""
        try:
            return self._launched is None or self._launched.ready()
        except Exception:
            return True

    def finish(self) -> BatchRun:
        """Wait for the batch; if it fails, run its requests one by one, so that only a bad input fails."""
        batch, reasons = self._batch, dict[int, str]()
        legs_s: tuple[float, ...] = ()
        try:
            if self._launched is None:
                rows, ends_s = self._padded(), [self._began_s]
                for leg in batch.key.legs:
                    rows = self._executor.run(leg, rows)
                    ends_s.append(monotonic())
                    self._passed.append(tuple([one[: batch.size] for one in rows]))
                legs_s = tuple(np.diff(ends_s).tolist()) if batch.key.ahead else ()
            else:
                self._passed = self._launched.wait()
                legs_s = self._launched.legs_s
            rows = self._passed[-1]
        except Exception:
            _note("run one by one", batch)
            rows, reasons = _one_by_one(self._executor, batch, joined(self._pieces))
        done, failed = _sort(batch, reasons)
        outputs = list[bytes]()
        confidence, top = tuple[float, ...](), tuple[int, ...]()
        if self._executor.ends(batch.key):
            if rows and self._executor.is_confident(batch.key.model):
                *answers, sure = rows
                rows = tuple(answers)
                confidence, top = _said(rows, sure) if batch.blocks[0].keep else ((), ())
            outputs = [tensor.cpu().numpy().tobytes() for tensor in rows]
        elif done:
            self._store.put(_ids(done), rows)
        if batch.blocks[0].keep and not reasons:
            self._keep()
        return BatchRun(
            done=done,
            failed=failed,
            outputs=outputs,
            confidence=confidence,
            top=top,
            began_s=self._began_s,
            busy_s=monotonic() - self._began_s,
            legs_s=() if reasons else legs_s,
        )

    def _padded(self) -> Tensors:
        """Return the inputs, on a CPU with the last rows once more up to the next shape."""
        size, pieces = sum([len(piece[0]) for piece in self._pieces]), self._pieces
        more = shape_for(size) - size if self._executor.device.type == "cpu" else 0
        if more:
            last = pieces[-1]
            pieces = [*pieces, *[tuple([one[-1:].expand(more, *one.shape[1:]) for one in last])]]
        return joined(pieces)

    def _keep(self) -> None:
        """Keep what every segment gave but the last of a plan, so that another plan can go on from there."""
        key, ends = self._batch.key, self._executor.ends(self._batch.key)
        ids = _ids(self._batch.blocks)
        for segments, rows in enumerate(self._passed[:-1] if ends else self._passed, start=key.segment + 1):
            self._store.keep(ids, segments, rows)


def _said(outputs: Tensors, sure: torch.Tensor) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return how sure the model is of each answer, and the class with the largest output."""
    top = tuple(outputs[0].argmax(dim=1).tolist()) if outputs[0].dim() == 2 else ()
    return tuple([round(value, 6) for value in sure.tolist()]), top


def take_inputs(store: ActivationStore, batch: Batch) -> Sequence[Tensors]:
    """Take the inputs of a batch: what is forgotten from now on, it has."""
    return store.take_pieces([ids_of(block.requests) for block in batch.blocks])


def run_batch(
    executor: Executor, store: ActivationStore, batch: Batch, pieces: Sequence[Tensors] | None = None
) -> BatchRun:
    """Run a batch from start to end."""
    return BatchUnderWay(executor, store, batch, pieces).finish()


def _one_by_one(executor: Executor, batch: Batch, inputs: Tensors) -> tuple[Tensors, dict[int, str]]:
    rows, reasons = list[Tensors](), dict[int, str]()
    for number, request in enumerate(_ids(batch.blocks)):
        try:
            row = tuple([one[number : number + 1] for one in inputs])
            for leg in batch.key.legs:
                row = executor.run(leg, row)
            rows.append(row)
        except Exception as error:
            reasons[request] = f"{type(error).__name__}: {error}".splitlines()[0]
    return tuple([torch.cat(tensors) for tensors in zip(*rows, strict=True)]), reasons


def _ids(blocks: Sequence[Block]) -> list[int]:
    return [number for block in blocks for number in ids_of(block.requests)]


def _sort(batch: Batch, reasons: dict[int, str]) -> tuple[list[Block], list[tuple[Block, str]]]:
    """Keep blocks without failures whole; split the others into what ran and what failed."""
    if not reasons:
        return list(batch.blocks), []
    done, failed = [], []
    for block in batch.blocks:
        bad, good = split_by(block.requests, reasons)
        if good:
            done.append(block_of(block.id, block.key, good))
        failed += [
            (block_of(block.id, block.key, (example,)), reasons[example.id]) for example in each_example(bad)
        ]
    return done, failed


# -- Threads that run work on a device beside the event loop, one per lane.

Work = Callable[[], Any]
Then = Callable[[Any], None]


class Lanes:
    """Takes work from the event loop and returns results to it, each in one hand-over without futures."""

    def __init__(self, count: int, failed: Callable[[Exception], None]) -> None:
        self.under_way = 0
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._line: SimpleQueue[tuple[Work, Then]] = SimpleQueue()
        for number in range(count):
            Thread(target=self._work, name=f"lane-{number}", daemon=True).start()

    def run(self, work: Work, then: Then) -> None:
        """Run `work` in the next free lane, then pass its result to `then` in the event loop."""
        self.under_way += 1
        self._line.put((work, then))

    def run_batch(self, executor: Executor, store: ActivationStore, batch: Batch, then: Then) -> None:
        """Run this batch in the next free lane; its inputs are taken now."""
        self.run(partial(run_batch, executor, store, batch, take_inputs(store, batch)), then)

    def _work(self) -> None:
        while True:
            work, then = self._line.get()
            try:
                found = work()
            except Exception as error:
                then, found = self._failed, error
            with suppress(RuntimeError):  # the loop has ended, and with it this server
                self._loop.call_soon_threadsafe(self._done, then, found)

    def _done(self, then: Then, found: Any) -> None:
        self.under_way -= 1
        then(found)


# -- Keeps several batches running on a device that works in parallel with the host.
#
# The event loop's own thread starts batches, asks the device whether they are done, and finishes them. A
# thread of its own for that would have to be woken for each batch, and would wait for Python's lock.

LOOK_S = 0.00002
"""With few cores the event loop rests for this long between two looks at the device."""


class OverlappingLanes(Lanes):
    """Runs up to `count` overlapping batches; what cannot overlap, such as loading, uses a thread."""

    def __init__(self, count: int, failed: Callable[[Exception], None]) -> None:
        super().__init__(1, failed)
        self._count = count
        self._waiting: deque[tuple[Callable[[], BatchUnderWay], Then]] = deque()
        self._running: list[tuple[BatchUnderWay, Then]] = []
        self._is_looking = False
        self._rests = not has_many_cores()

    def run_batch(self, executor: Executor, store: ActivationStore, batch: Batch, then: Then) -> None:
        """Start this batch as soon as fewer than `count` are running; its inputs are taken now."""
        self.under_way += 1
        begin = partial(BatchUnderWay, executor, store, batch, take_inputs(store, batch))
        self._waiting.append((begin, then))
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._count:
            begin, then = self._waiting.popleft()
            batch = begin()
            if batch.is_launched:
                self._running.append((batch, then))
            else:
                self.under_way -= 1
                self.run(batch.finish, then)
        if self._running and not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Finish the batches that the device has done, and look again in the next round of the loop."""
        done = [one for one in self._running if one[0].ready()]
        for batch, then in done:
            self._running.remove((batch, then))
            found: BatchRun | Exception
            try:
                found = batch.finish()
            except Exception as error:
                then, found = self._failed, error
            self._done(then, found)
        self._is_looking = False
        self._begin()
        if self._rests and not done:
            sleep(LOOK_S)
