"""Measures how often each plan gives the widest plan's answer, on what clients send, while they are served.

    python -m slimsched.serving.measure.agreement MODEL CACHE        reads examples, writes what was found

This is for models that nobody has evaluated. The gateway keeps some examples of what comes in, in memory
and never on disk. Once there are enough, a child process of the lowest priority runs every plan on them, on
one thread of a CPU: it gets the time that servers leave. What it finds stays in the user's cache, and counts
from then on.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import chain
from pathlib import Path
from time import process_time

import numpy as np

from slimsched.core.config import DataError
from slimsched.models.cache import cache_folder, write_kept
from slimsched.models.package import QUALITY, read_quality
from slimsched.models.quality import MeasuredAnswers, QualityTable, write_quality
from slimsched.models.spec import NUMPY
from slimsched.serving.domain.model import RatedModel, ServedModel
from slimsched.serving.measure.missing import child
from slimsched.serving.scenario.files import read_model

log = logging.getLogger("slim.agreement")

EXAMPLES, LEAST, MOST_BYTES = 1000, 50, 2**27
"""How many examples are compared: fewer where they take more than so many bytes, but at least LEAST."""

SPACING_S = 0.01
"""Of the examples that come within this time, one is kept, so that they are not all of one client."""

AT_ONCE, PATIENCE_S = 25, 300.0
"""Examples in a batch; after so much time of a core, those that were compared must do."""

Example = Callable[[], Sequence[memoryview]]

MODULE = "slimsched.serving.measure.agreement"


class Sample:
    """Different examples of a model, as bytes of each input."""

    def __init__(self, model: ServedModel) -> None:
        self.model, self.cache = model, cache_folder(model.folder)
        self.wanted = min(EXAMPLES, max(LEAST, MOST_BYTES // max(1, model.spec.row_bytes)))
        self.examples: dict[tuple[bytes, ...], None] = {}
        self._next_s = 0.0

    def see(self, at_s: float, example: Example) -> bool:
        """Look at an example, if it is time for one; return whether there are enough."""
        if at_s >= self._next_s:
            self._next_s = at_s + SPACING_S
            found = tuple(map(bytes, example()))
            if sum(map(len, found)) == self.model.spec.row_bytes:  # else it lies in a GPU's memory
                self.examples[found] = None
        return len(self.examples) >= self.wanted


class AgreementMeter:
    """Collects examples for the models that nobody has evaluated; measures one model after the other.

    `state` says of each model how far that is, or what its plans are rated by.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._samples = {model.number: Sample(model) for model in models if not model.quality.is_measured}
        self._state = {model.name: model.quality.name for model in models}
        self._full: asyncio.Queue[Sample] = asyncio.Queue()

    @property
    def sampler(self) -> Callable[[int, float, Example], None] | None:
        """What must be shown the examples that come in, if anything is missing."""
        return self._see if self._samples else None

    @property
    def state(self) -> dict[str, str]:
        """What the plans of each model are rated by, or what is missing for that."""
        missing = {
            one.model.name: f"not measured yet: {one.wanted - len(one.examples)} of {one.wanted} examples "
            "are still missing; meanwhile wider plans count as better"
            for one in self._samples.values()
        }
        return self._state | missing

    def _see(self, model: int, at_s: float, example: Example) -> None:
        sample = self._samples.get(model)
        if sample is not None and sample.see(at_s, example):
            self._full.put_nowait(self._samples.pop(model))
            self._state[sample.model.name] = f"being measured on {sample.wanted} examples that came in"

    async def run(self, rate: Callable[[RatedModel], Awaitable[None]]) -> None:
        """Measure until cancelled, and tell what each model's plans are rated by from now on."""
        while True:
            sample = await self._full.get()
            model = sample.model
            try:
                table = await _measured(sample)
                self._state[model.name] = table.name
                accuracies = tuple(table.by_plan.tolist())
                await rate(RatedModel(number=model.number, name=table.name, accuracies=accuracies))
            except Exception as error:  # the model's own code may fail in any way; it is served as before
                self._state[model.name] = f"not measured: {error}"
            log.info("the plans of %s are rated by: %s", model.name, self._state[model.name])


async def _measured(sample: Sample) -> QualityTable:
    """Let a child process measure, which sees no GPU."""
    told, one = chain.from_iterable(sample.examples), {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    names = MODULE, sample.model.folder, str(sample.cache)
    async with child(*names, told=told, **one, CUDA_VISIBLE_DEVICES="") as process:
        assert process.stdout is not None
        said = (await process.stdout.read()).decode(errors="replace").strip()
        if await process.wait():
            raise DataError(said or f"the process that compares plans ended with code {process.returncode}")
    sample.examples.clear()  # they may be large
    return await asyncio.to_thread(read_quality, sample.cache, sample.model.spec)


def measure(folder: str, cache: Path, raw: bytes) -> None:
    """Compare all plans on examples, given as the bytes of their inputs, and keep what was found."""
    import torch

    from slimsched.models.data.dataset import Inputs
    from slimsched.models.evaluate import agreement_name
    from slimsched.models.evaluate import measure as evaluate
    from slimsched.models.loading import load_model

    if cache != cache_folder(folder):
        raise DataError(f"{folder} has changed since it was loaded; start the server again")
    torch.set_num_threads(1)
    model, spec = read_model(folder, rated=False), (elastic := load_model(Path(folder))).spec
    rows = np.frombuffer(raw, np.uint8).reshape(-1, spec.row_bytes)
    ends = np.cumsum([tensor.row_bytes for tensor in spec.inputs])
    arrays = [
        np.ascontiguousarray(part).view(NUMPY[tensor.datatype]).reshape(len(rows), *tensor.shape)
        for part, tensor in zip(np.split(rows, ends[:-1], axis=1), spec.inputs, strict=True)
    ]
    parts = list[MeasuredAnswers]()
    while (done := len(parts) * AT_ONCE) < len(rows) and (done < LEAST or process_time() < PATIENCE_S):
        some = Inputs(arrays=tuple(one[done : done + AT_ONCE] for one in arrays))
        parts.append(evaluate(elastic, some, agreement=True, batch=AT_ONCE))
    sure = [one.confidence for one in parts if one.confidence is not None]
    found = MeasuredAnswers(
        correct=np.hstack([one.correct for one in parts]),
        answers=np.hstack([one.answers for one in parts]),
        confidence=np.hstack(sure) if sure else None,
    )
    costs = [float(model.figures.plan_macs(spec, plan)) for plan in spec.plans]
    file = BytesIO()
    write_quality(
        file,
        found.correct,
        name=agreement_name(spec, found.correct.shape[1], random=False) + " that came in",
        texts=[spec.text(plan) for plan in spec.plans],
        confidences=found.confidences(spec.plans.index(spec.widest), costs),
    )
    write_kept(cache / QUALITY, file.getvalue())


def main() -> None:
    """Measure at the lowest priority; a standard output that says something says what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    os.nice(19)
    with suppress(OSError, AttributeError):  # only time that nobody else wants, where the system has that
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        measure(sys.argv[1], Path(sys.argv[2]), sys.stdin.buffer.read())
    except BaseException as error:  # a model's code may raise anything, and even exit
        said.write(" ".join(f"{type(error).__name__}: {error}"[:300].split()))
        said.flush()
        sys.exit(1)


if __name__ == "__main__":
    main()
