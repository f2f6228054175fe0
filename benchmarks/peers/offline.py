"""The offline loop: the same model in a bare loop on every core at once, without a server."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from time import perf_counter
from typing import Any

SECONDS = 1.5
_state: dict[str, Any] = {}


def rates_per_s(width: float, batches: tuple[int, ...], cores: int = 2) -> dict[int, float]:
    """Return the images per second of all cores together, for each batch size."""
    context = get_context("spawn")
    together = context.Barrier(cores, timeout=120)
    with ProcessPoolExecutor(cores, context, _start, (width, max(batches), together)) as pool:
        return {batch: sum(pool.map(_loop, [batch] * cores)) for batch in batches}


def _start(width: float, batch: int, together: Barrier) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from fixed_width import FixedWidth

    _state.update(model=FixedWidth(width, batch), together=together)


def _loop(batch: int) -> float:
    """Measure one process; the processes wait for each other before and after, so each gets one call."""
    model, bodies = _state["model"], [os.urandom(3 * 32 * 32)] * batch
    _state["together"].wait()
    began_s, done = perf_counter(), 0
    while perf_counter() - began_s < SECONDS:
        model.classify(bodies)
        done += batch
    rate = done / (perf_counter() - began_s)
    _state["together"].wait()
    return rate
