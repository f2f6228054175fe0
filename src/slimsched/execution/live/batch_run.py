"""One batch through an executor: gather the inputs, run, keep the outputs. Runs in a lane's thread."""

from time import monotonic

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.domain.batch import Batch
from slimsched.domain.block import Block, block_of
from slimsched.domain.width import SEGMENTS
from slimsched.execution.live.activation_store import ActivationStore
from slimsched.execution.live.executor import Executor, Launched


class BatchRun(Struct, frozen=True, kw_only=True):
    """Blocks that ran, blocks that failed and why, the logits of those that ran (after the last segment).

    `began_s` is on the host's monotonic clock.
    """

    done: list[Block]
    failed: list[tuple[Block, str]]
    logits: bytes
    began_s: float
    busy_s: float


class BatchUnderWay:
    """A batch that an executor has begun."""

    def __init__(self, executor: Executor, store: ActivationStore, batch: Batch) -> None:
        self._began_s = monotonic()
        self._executor, self._store, self._batch = executor, store, batch
        self._ids = [request.id for block in batch.blocks for request in block.requests]
        self._inputs = store.take(self._ids)
        self._launched: Launched | None = None
        launch = getattr(executor, "launch", None)  # isinstance of a protocol takes longer than a launch
        if launch is not None:
            try:
                self._launched = launch(batch.key, _prepared(executor, batch, self._inputs))
            except Exception:
                self._launched = None  # it is run instead, and fails there, one by one

    def ready(self) -> bool:
        """Whether the device is done with it."""
        return self._launched is None or self._launched.ready()

    def finish(self) -> BatchRun:
        """Wait for it; when it fails, run its requests one by one, so that a bad input fails alone."""
        ids, batch, reasons = self._ids, self._batch, dict[int, str]()
        try:
            if self._launched is None:
                rows = _run(self._executor, batch, self._inputs)
            else:
                rows = self._launched.wait()
        except Exception:
            rows, reasons = _one_by_one(self._executor, batch, ids, self._inputs)
            ids = [one for one in ids if one not in reasons]
        done, failed = _sort(batch, reasons)
        logits = b""
        if batch.key.segment == SEGMENTS - 1:
            logits = rows.float().cpu().numpy().tobytes()
        else:
            self._store.put(ids, rows)
        busy_s = monotonic() - self._began_s
        return BatchRun(done=done, failed=failed, logits=logits, began_s=self._began_s, busy_s=busy_s)


def run_batch(executor: Executor, store: ActivationStore, batch: Batch) -> BatchRun:
    """Run a batch from beginning to end."""
    return BatchUnderWay(executor, store, batch).finish()


def _run(executor: Executor, batch: Batch, inputs: Tensor) -> Tensor:
    return executor.run(batch.key, _prepared(executor, batch, inputs))


def _prepared(executor: Executor, batch: Batch, inputs: Tensor) -> Tensor:
    return executor.inputs(inputs) if batch.key.segment == 0 else inputs


def _one_by_one(
    executor: Executor, batch: Batch, ids: list[int], inputs: Tensor
) -> tuple[Tensor, dict[int, str]]:
    rows, reasons = [], {}
    for number, request in enumerate(ids):
        try:
            rows.append(_run(executor, batch, inputs[number : number + 1]))
        except Exception as error:
            reasons[request] = f"execution failed: {type(error).__name__}: {error}".splitlines()[0]
    return torch.cat(rows) if rows else torch.empty(0), reasons


def _sort(batch: Batch, reasons: dict[int, str]) -> tuple[list[Block], list[tuple[Block, str]]]:
    """Blocks without failures as they are, the others cut into what ran and what did not."""
    if not reasons:
        return list(batch.blocks), []
    done, failed = [], []
    for block in batch.blocks:
        good = tuple(request for request in block.requests if request.id not in reasons)
        if good:
            done.append(block_of(block.id, block.key, good, block.ahead))
        failed += [
            (block_of(block.id, block.key, (request,)), reasons[request.id])
            for request in block.requests
            if request.id in reasons
        ]
    return done, failed
