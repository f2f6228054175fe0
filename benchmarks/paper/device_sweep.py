"""Measures Figures 1 to 3 of the paper: memory, utilization, energy and latency of a device.

There are two sweeps. The batch sweep runs all segments of a plan in a closed loop, for each batch size. In
the load sweep, batches of one size arrive at random, queue, and run on several lanes, up to the capacity and
beyond. A `DeviceWatch` reads utilization and power meanwhile, in a thread of its own.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from threading import Event, Lock, Thread
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple, Protocol

import numpy as np
from figures import FigurePoint
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Batch, Request, block_of, ids_of
from slimsched.serving.live.batches import ActivationStore, run_batch
from slimsched.serving.live.executor import Executor
from slimsched.serving.live.sensors import PowerMeter, open_nvml


class Utilization(Protocol):
    """The share of recent time in which the device was busy."""

    source: str

    def read(self) -> float | None:
        """Return a value in [0, 1], or None if it cannot be measured."""
        ...


class NvmlUtilization:
    """Utilization as in nvidia-smi: the share of time in which at least one kernel ran."""

    source = "NVML utilization"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> float:
        """Read the last sampling period, which lasts between a sixth of a second and a second."""
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100


class NoUtilization:
    """A device without a utilization counter; the busy time of its lanes is used instead."""

    source = "busy time of lanes"

    def read(self) -> None:
        """Return None."""


class DeviceWatch:
    """Watches a device inside a `with` block; figures leave out the first `settle_s`."""

    def __init__(self, meter: PowerMeter, utilization: Utilization, settle_s: float) -> None:
        self._meter, self._utilization, self._settle_s = meter, utilization, settle_s
        self._ticks: list[tuple[float, float]] = []
        self._shares: list[float] = []
        self._stop = Event()

    def __enter__(self) -> "DeviceWatch":
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def power_w(self) -> float | None:
        """Mean power between the first and the last tick of the counter; None with fewer than two ticks."""
        if len(self._ticks) < 2:
            return None
        (start_s, start_j), (end_s, end_j) = self._ticks[0], self._ticks[-1]
        return (end_j - start_j) / (end_s - start_s)

    @property
    def utilization(self) -> float | None:
        """Mean of the utilization readings."""
        return sum(self._shares) / len(self._shares) if self._shares else None

    def _watch(self) -> None:
        began_s, last_j = monotonic(), -1.0
        while not self._stop.wait(0.005):
            if monotonic() - began_s < self._settle_s:
                continue
            reading = self._meter.read(0.0)
            if reading.energy_j != last_j:
                if last_j >= 0.0:
                    self._ticks.append((reading.at_s, reading.energy_j))
                last_j = reading.energy_j
            share = self._utilization.read()
            if share is not None:
                self._shares.append(share)


def open_gpu(gpu: int) -> tuple[PowerMeter, Utilization] | None:
    """Open meter and utilization of a whole GPU; None without NVML."""
    meter = open_nvml(gpu)
    if meter is None:
        return None
    import pynvml

    return meter, NvmlUtilization(pynvml, pynvml.nvmlDeviceGetHandleByIndex(gpu))


class _Lane:
    """Runs one batch after another through all segments of a plan and records the times."""

    def __init__(self, executor: Executor, model: ServedModel, plan: Path, batch: int, number: int) -> None:
        self._executor, self._store = executor, ActivationStore()
        requests = (Request(id=number * batch, arrival_s=0.0, count=batch),)
        self._ids = ids_of(requests)
        keys = model.legs(plan)
        self._inputs = executor.example(keys[0], batch)
        self._batches = [
            Batch(id=0, key=key, instance=0, blocks=(block_of(0, key, requests),), size=batch) for key in keys
        ]
        self.segment_s: list[list[float]] = []

    def run(self) -> None:
        self._store.put(self._ids, self._inputs)
        self.segment_s.append([run_batch(self._executor, self._store, one).busy_s for one in self._batches])


Watch = Callable[[], DeviceWatch]


class Sweep(Struct, frozen=True, kw_only=True):
    """What to measure: batch sizes of both sweeps, lanes and loads of the second, seconds per point.

    After `limit_s` no further point is begun; those that were measured are returned.
    """

    batches: tuple[int, ...]
    block: int
    lanes: int
    loads: tuple[float, ...]
    seconds: float
    model: ServedModel
    plans: tuple[Path, ...]
    limit_s: float = inf

    def measure(
        self, make: Callable[[int], Executor], watch: Watch, progress: Callable[[str], None]
    ) -> tuple[list[FigurePoint], list[FigurePoint]]:
        """Measure both sweeps, the loads first; `make` returns an executor for one batch size."""
        until_s = perf_counter() + self.limit_s
        by_load: list[FigurePoint] = []
        executor = make(self.block)
        for plan in self.plans:
            course = Course(executor, self.model, plan, self.block)
            by_load += self._loads(course, watch, progress, until_s)
        by_batch: list[FigurePoint] = []
        for batch in self.batches:
            if perf_counter() > until_s:
                progress(f"no time for batch {batch}")
                continue
            executor = make(batch)
            for plan in self.plans:
                progress(f"batch {batch} by plan {self.model.spec.text(plan)}")
                course = Course(executor, self.model, plan, batch)
                by_batch.append(closed_loop(course, lanes=1, seconds=self.seconds, watch=watch))
        return by_batch, by_load

    def _loads(
        self, course: "Course", watch: Watch, progress: Callable[[str], None], until_s: float
    ) -> list[FigurePoint]:
        """Measure one plan in a closed loop, then at shares of what it carried there."""
        name = self.model.spec.text(course.plan)
        if perf_counter() > until_s:
            progress(f"no time for plan {name}")
            return []
        points = [closed_loop(course, lanes=self.lanes, seconds=self.seconds, watch=watch)]
        for load in self.loads:
            if perf_counter() > until_s:
                progress(f"no time for plan {name} at {load:.0%}")
                continue
            progress(f"plan {name} at {load:.0%}")
            point = open_loop(
                course,
                load=load,
                capacity_per_s=points[0].images_per_s,
                lanes=self.lanes,
                seconds=self.seconds,
                watch=watch,
            )
            points.append(point)
        return points


class Course(NamedTuple):
    """One measurement course: batches of one size through one plan of a model."""

    executor: Executor
    model: ServedModel
    plan: Path
    batch: int

    def load(self, lanes: int) -> list[Instance]:
        """Load instances of the plan for this many lanes; return them with their measured bytes."""
        keys, slots = self.model.legs(self.plan), []
        for number in range(lanes * len(keys)):
            key = keys[number % len(keys)]
            slot = Instance(
                id=number, segment=key.segment, choice=key.choice, memory_bytes=0, model=key.model
            )
            slots.append(replace(slot, memory_bytes=self.executor.load(slot)))
        return slots


def closed_loop(course: Course, *, lanes: int, seconds: float, watch: Watch) -> FigurePoint:
    """Measure with each lane starting its next batch when the last is done."""
    return _measure(course, np.zeros(10**6), load=0.0, lanes=lanes, seconds=seconds, watch=watch)


def open_loop(
    course: Course,
    *,
    load: float,
    capacity_per_s: float,
    lanes: int,
    seconds: float,
    watch: Watch,
) -> FigurePoint:
    """Measure with batches that arrive at random, at a share of the capacity in examples per second."""
    rng = np.random.default_rng(round(1000 * load))
    rate = load * capacity_per_s / course.batch
    arrivals_s = np.cumsum(rng.exponential(1 / rate, int(rate * seconds) + 1))
    return _measure(course, arrivals_s, load=load, lanes=lanes, seconds=seconds, watch=watch)


def _measure(
    course: Course,
    arrivals_s: NDArray[np.float64],
    *,
    load: float,
    lanes: int,
    seconds: float,
    watch: Watch,
) -> FigurePoint:
    slots = course.load(lanes)
    workers = [_Lane(*course, number) for number in range(lanes)]
    for worker in workers:
        worker.run()
        worker.segment_s.clear()
    line, lock, latencies_s = iter(arrivals_s), Lock(), list[float]()
    with watch() as seen:
        began_s = perf_counter()

        def work(worker: _Lane) -> None:
            while perf_counter() - began_s < seconds:
                with lock:
                    arrival_s = next(line, None)
                if arrival_s is None:
                    return
                wait_s = began_s + arrival_s - perf_counter()
                if wait_s > 0:
                    sleep(wait_s)
                arrived_s = began_s + arrival_s if load else perf_counter()
                worker.run()
                latencies_s.append(perf_counter() - arrived_s)

        with ThreadPoolExecutor(lanes) as pool:
            list(pool.map(work, workers))
        passed_s = perf_counter() - began_s
    times_s = np.array([row for worker in workers for row in worker.segment_s])
    for slot in slots:
        course.executor.unload(slot.id)
    utilization = seen.utilization
    return FigurePoint(
        plan=course.model.spec.text(course.plan),
        batch=course.batch,
        load=load,
        utilization=float(times_s.sum()) / (lanes * passed_s) if utilization is None else utilization,
        latency_mean_s=float(np.mean(latencies_s)),
        latency_p99_s=float(np.percentile(latencies_s, 99)),
        segment_s=tuple(float(one) for one in times_s.mean(axis=0)),
        segment_bytes=tuple(slot.memory_bytes for slot in slots[: len(course.plan)]),
        images_per_s=len(latencies_s) * course.batch / passed_s,
        power_w=seen.power_w or 0.0,
    )
