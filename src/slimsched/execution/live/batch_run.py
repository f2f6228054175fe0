"""One batch through an executor: gather the inputs, run, keep the outputs. Runs in a lane's thread."""

from collections.abc import Callable
from functools import partial
from time import monotonic

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.domain.batch import Batch
from slimsched.domain.block import Block, block_of
from slimsched.domain.width import SEGMENTS
from slimsched.execution.live.activation_store import ActivationStore
from slimsched.execution.live.executor import Executor, OverlappingExecutor


class BatchRun(Struct, frozen=True, kw_only=True):
    """Blocks that ran, blocks that failed and why, the logits of those that ran (after the last segment).

    `began_s` is on the host's monotonic clock.
    """

    done: list[Block]
    failed: list[tuple[Block, str]]
    logits: bytes
    began_s: float
    busy_s: float


def run_batch(executor: Executor, store: ActivationStore, batch: Batch) -> BatchRun:
    """Run a batch; when it fails, run its requests one by one, so that a bad input fails alone."""
    began_s = monotonic()
    ids = [request.id for block in batch.blocks for request in block.requests]
    inputs = store.take(ids)
    return _finish(executor, store, batch, ids, inputs, began_s, partial(_run, executor, batch, inputs))


def begin_batch(
    executor: OverlappingExecutor, store: ActivationStore, batch: Batch
) -> Callable[[], BatchRun]:
    """Start a batch without waiting for the device; what is returned waits for it and is called once."""
    began_s = monotonic()
    ids = [request.id for block in batch.blocks for request in block.requests]
    inputs = store.take(ids)
    try:
        rows = executor.launch(batch.key, executor.inputs(inputs) if batch.key.segment == 0 else inputs).wait
    except Exception:
        rows = partial(_run, executor, batch, inputs)  # fails again, and then one by one
    return partial(_finish, executor, store, batch, ids, inputs, began_s, rows)


def _finish(
    executor: Executor,
    store: ActivationStore,
    batch: Batch,
    ids: list[int],
    inputs: Tensor,
    began_s: float,
    result: Callable[[], Tensor],
) -> BatchRun:
    reasons: dict[int, str] = {}
    try:
        rows = result()
    except Exception:
        rows, reasons = _one_by_one(executor, batch, ids, inputs)
        ids = [one for one in ids if one not in reasons]
    done, failed = _sort(batch, reasons)
    logits = b""
    if batch.key.segment == SEGMENTS - 1:
        logits = rows.float().cpu().numpy().tobytes()
    else:
        store.put(ids, rows)
    busy_s = monotonic() - began_s
    return BatchRun(done=done, failed=failed, logits=logits, began_s=began_s, busy_s=busy_s)


def _run(executor: Executor, batch: Batch, inputs: Tensor) -> Tensor:
    if batch.key.segment == 0:
        inputs = executor.inputs(inputs)
    return executor.run(batch.key, inputs)


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
            done.append(block_of(block.id, block.key, good))
        failed += [
            (block_of(block.id, block.key, (request,)), reasons[request.id])
            for request in block.requests
            if request.id in reasons
        ]
    return done, failed
