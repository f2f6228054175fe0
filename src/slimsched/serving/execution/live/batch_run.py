"""Runs one batch: gathers the inputs, runs the executor, stores the outputs."""

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from msgspec import Struct

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.request import Batch, Block, block_of, each_example, ids_of, split_by
from slimsched.serving.execution.live.activation_store import ActivationStore, joined
from slimsched.serving.execution.live.batch_shape import shape_for
from slimsched.serving.execution.live.executor import Executor, Launched


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


class _Said(NamedTuple):
    """How sure the model is of each answer, and the class with the largest output."""

    confidence: tuple[float, ...] = ()
    top: tuple[int, ...] = ()


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
        self._ends_s = [self._began_s]
        self._passed: list[Tensors] = []  # what each segment gave
        self._launched: Launched | None = None
        launch = getattr(executor, "launch", None)  # isinstance of a protocol takes longer than a launch
        if launch is not None:
            with suppress(Exception):  # it is run instead, and fails there, one by one
                self._launched = launch(
                    batch.key.legs,
                    self._pieces,
                    (batch.instance, *batch.also),
                    keep=batch.blocks[0].keep,
                )

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
                _run(self._executor, batch, self._padded(), self._ends_s, self._passed)
                self._passed = [tuple([one[: batch.size] for one in rows]) for rows in self._passed]
                legs_s = tuple(np.diff(self._ends_s).tolist()) if batch.key.ahead else ()
            else:
                self._passed = self._launched.wait()
                legs_s = self._launched.legs_s
            rows = self._passed[-1]
        except Exception:
            rows, reasons = _one_by_one(self._executor, batch, joined(self._pieces))
        done, failed = _sort(batch, reasons)
        outputs, said = list[bytes](), _Said()
        if self._executor.ends(batch.key):
            rows, said = self._part(rows)
            outputs = [tensor.cpu().numpy().tobytes() for tensor in rows]
        elif done:
            self._store.put(_ids(done), rows)
        if batch.blocks[0].keep and not reasons:
            self._keep()
        return BatchRun(
            done=done,
            failed=failed,
            outputs=outputs,
            confidence=said.confidence,
            top=said.top,
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

    def _part(self, rows: Tensors) -> "tuple[Tensors, _Said]":
        """Part the outputs of a complete plan from what the model says about them."""
        if not rows or not self._executor.is_confident(self._batch.key.model):
            return rows, _Said()
        *outputs, sure = rows
        if not self._batch.blocks[0].keep:
            return tuple(outputs), _Said()
        confidence = tuple([round(value, 6) for value in sure.tolist()])
        top = tuple(outputs[0].argmax(dim=1).tolist()) if outputs[0].dim() == 2 else ()
        return tuple(outputs), _Said(confidence, top)

    def _keep(self) -> None:
        """Keep what every segment gave but the last of a plan, so that another plan can go on from there."""
        key, ends = self._batch.key, self._executor.ends(self._batch.key)
        ids = _ids(self._batch.blocks)
        for segments, rows in enumerate(self._passed[:-1] if ends else self._passed, start=key.segment + 1):
            self._store.keep(ids, segments, rows)


def take_inputs(store: ActivationStore, batch: Batch) -> Sequence[Tensors]:
    """Take the inputs of a batch: what is forgotten from now on, it has."""
    return store.take_pieces([ids_of(block.requests) for block in batch.blocks])


def run_batch(
    executor: Executor, store: ActivationStore, batch: Batch, pieces: Sequence[Tensors] | None = None
) -> BatchRun:
    """Run a batch from start to end."""
    return BatchUnderWay(executor, store, batch, pieces).finish()


def _run(
    executor: Executor,
    batch: Batch,
    inputs: Tensors,
    ends_s: list[float] | None = None,
    passed: list[Tensors] | None = None,
) -> Tensors:
    rows = inputs
    for leg in batch.key.legs:
        rows = executor.run(leg, rows)
        if ends_s is not None and passed is not None:
            ends_s.append(monotonic())
            passed.append(rows)
    return rows


def _one_by_one(executor: Executor, batch: Batch, inputs: Tensors) -> tuple[Tensors, dict[int, str]]:
    rows, reasons = list[Tensors](), dict[int, str]()
    for number, request in enumerate(_ids(batch.blocks)):
        try:
            rows.append(_run(executor, batch, tuple([one[number : number + 1] for one in inputs])))
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
