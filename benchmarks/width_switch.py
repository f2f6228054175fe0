"""What it costs an executor to run another width than before."""

from statistics import median
from time import perf_counter

from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.live.executor import Executor

INSTANCE = 0


def switch_s(executor: Executor, model: ServedModel, batch: int, *, warm_up: int, rounds: int) -> float:
    """Return the extra time of a batch whose width differs from that of the batch before."""
    keys = [model.legs(model.spec.path(f"0.5,0.5,{width},1.0"))[2] for width in (0.25, 1.0)]
    executor.load(Instance(id=INSTANCE, segment=2, choice=keys[1].choice, memory_bytes=0))
    inputs = executor.example(keys[0], batch)
    extra_s = []
    for number in range(warm_up + rounds):
        for key in keys:
            times_s = []
            for _ in range(2):
                began_s = perf_counter()
                executor.run(key, inputs)
                times_s.append(perf_counter() - began_s)
            if number >= warm_up:
                extra_s.append(times_s[0] - times_s[1])
    executor.unload(INSTANCE)
    return median(extra_s)
