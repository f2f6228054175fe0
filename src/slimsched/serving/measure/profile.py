"""Measures a model on a device: latency, energy and memory by key, batch size and concurrency.

A latency is the time of a whole batch as a server runs it: gather inputs, run, store outputs. Energy is
power, measured at a few points of each segment, times latency.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import log2
from pathlib import Path
from statistics import mean, median, quantiles
from threading import Event, Thread
from time import monotonic, perf_counter

import msgspec
import numpy as np
from msgspec import Struct

from slimsched.core.config import UNREADABLE, Amount, DataError, Finite, PositiveSeconds
from slimsched.models.elastic import Tensors
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import ProfileRecord
from slimsched.serving.domain.request import Batch, Key, Request, block_of
from slimsched.serving.live.batches import ActivationStore, BatchUnderWay
from slimsched.serving.live.executor import Executor
from slimsched.serving.live.sensors import PowerMeter

# -- Power above idle by key and batch size, measured at a few points and interpolated in between.


class ActivePower(Struct, frozen=True, kw_only=True):
    """`watts[segment][choice]` holds a value per batch size; choices in between are interpolated."""

    batches: tuple[int, ...]
    watts: list[dict[int, list[float]]]

    def at(self, key: Key, batch: int) -> float:
        """Interpolate, linearly in the choice's position and in the logarithm of the batch size."""
        sizes = [log2(size) for size in self.batches]
        measured = sorted(self.watts[key.segment].items())
        by_choice = [float(np.interp(log2(batch), sizes, row)) for _, row in measured]
        return float(np.interp(key.choice, [choice for choice, _ in measured], by_choice))


def constant_power(model: ServedModel, watts: float) -> ActivePower:
    """Use the same power for everything, for devices without a meter."""
    return ActivePower(batches=(1,), watts=[{0: [watts]} for _ in range(model.segments)])


def keys_measured(model: ServedModel) -> list[Key]:
    """Return the keys to measure: the narrowest and the widest choice of each segment.

    Choices of a model that is not nested are unrelated, so all of them are measured.
    """
    keys = sorted(model.keys.values(), key=lambda key: abs(key.previous - key.choice))  # alike ones first
    chosen: dict[tuple[int, int], Key] = {}
    for key in keys:
        choices = [other.choice for other in keys if other.segment == key.segment]
        if not model.spec.nested or key.choice in (min(choices), max(choices)):
            chosen.setdefault((key.segment, key.choice), key)
    return list(chosen.values())


def measured_power(
    model: ServedModel, batches: tuple[int, ...], watts: Mapping[tuple[Key, int], float]
) -> ActivePower:
    """Put measured values into a table."""
    table: list[dict[int, list[float]]] = [{} for _ in range(model.segments)]
    for key in keys_measured(model):
        table[key.segment][key.choice] = [watts[key, size] for size in batches]
    return ActivePower(batches=batches, watts=table)


def batches_measured(batches: tuple[int, ...]) -> tuple[int, ...]:
    """Return the smallest, the middle and the largest batch size of a profile."""
    return tuple(sorted({batches[0], batches[len(batches) // 2], batches[-1]}))


# -- Measures mean power while some work runs repeatedly, between two ticks of a counter.

PATIENCE_S = 10.0


def mean_power_w(meter: PowerMeter, work: Callable[[], object], *, at_least_s: float) -> float:
    """Return the mean watts from the counter's first change to its first change after `at_least_s`.

    NVML's counter changes only ten times per second, so a short window must begin and end with a change.
    Reading it takes milliseconds, so another thread does that.
    """
    changes: list[tuple[float, float]] = []
    enough = Event()

    def watch() -> None:
        began_s, last_j = monotonic(), meter.read(0.0).energy_j
        while not enough.is_set():
            reading = meter.read(0.0)
            if reading.energy_j != last_j:
                last_j = reading.energy_j
                changes.append((reading.at_s, last_j))
            seen_s = changes[-1][0] - changes[0][0] if changes else 0.0
            if seen_s >= at_least_s or monotonic() - began_s > PATIENCE_S:
                enough.set()
            enough.wait(0.001)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    while not enough.is_set():
        work()
    watcher.join()
    if len(changes) < 2:
        return 0.0
    (start_s, start_j), (end_s, end_j) = changes[0], changes[-1]
    return (end_j - start_j) / (end_s - start_s)


Cell = tuple[Key, int, int]


class Measured(Struct, frozen=True, kw_only=True):
    """One cell of the table: median and spread of a batch's time."""

    latency_s: PositiveSeconds
    spread: Finite


class Kept(Struct, kw_only=True):
    """The measurements of an unfinished run."""

    cells: dict[str, Measured] = {}
    watts: dict[str, Amount] = {}


class MeasuringPlan(Struct, frozen=True, kw_only=True):
    """What to measure, how often, and for how long at most; each cell gets at least three runs."""

    batches: tuple[int, ...]
    concurrency: tuple[int, ...]
    repeats: int = 7
    warm: int = 2
    cell_s: float = 60.0
    window_s: float = 0.3  # of each power measurement
    active_w: float = 0.0  # power above idle while busy, where no meter can read it

    def cells(self, model: ServedModel, segment: int) -> Iterator[Cell]:
        """Yield every (key, batch, concurrency) of a segment, in a fixed order."""
        for key in model.keys.values():
            for count in self.concurrency if key.segment == segment else ():
                for batch in self.batches:
                    yield key, batch, count

    def count(self, model: ServedModel) -> int:
        """Return the number of cells."""
        return len(model.keys) * len(self.concurrency) * len(self.batches)


class Profiler:
    """Measures cell by cell, and keeps results in a file so that an interrupted run can resume.

    `idle_w` is the idle power of the whole device that the meter reads, `share` this model's part of it.
    """

    def __init__(
        self,
        executor: Executor,
        model: ServedModel,
        meter: PowerMeter,
        plan: MeasuringPlan,
        keep: Path,
        idle_w: float,
        *,
        share: float = 1.0,
    ) -> None:
        self._executor, self._model, self._meter, self._plan = executor, model, meter, plan
        self._keep, self._idle_w, self._share = keep, idle_w, share
        self._is_modelled = "modelled" in meter.source
        self._found = Kept()
        if keep.is_file():
            try:
                self._found = msgspec.json.decode(keep.read_bytes(), type=Kept)
            except UNREADABLE as error:
                raise DataError(f"{keep} is damaged ({error}); remove it to measure afresh") from None

    @property
    def cells(self) -> int:
        """Number of cells to measure."""
        return self._plan.count(self._model)

    def measure(self, progress: Callable[[Cell], None]) -> None:
        """Measure every cell that has no result yet, one segment after another."""
        for segment in range(self._model.segments):
            slots = self._slots(segment)
            for slot in slots:
                self._executor.load(slot)
            for number, cell in enumerate(self._plan.cells(self._model, segment)):
                if _name(cell) not in self._found.cells:
                    self._found.cells[_name(cell)] = self._cell(cell)
                    if number % 50 == 0:
                        self._keep.write_bytes(msgspec.json.encode(self._found))
                progress(cell)
            if not self._is_modelled:
                self._power(segment)
            self._keep.write_bytes(msgspec.json.encode(self._found))
            for slot in slots:
                self._executor.unload(slot.id)

    def record(self, name: str, source: str, device: dict[str, str]) -> ProfileRecord:
        """Return the finished profile."""
        plan, cells, active = self._plan, self._found.cells, self._active_power()
        keys, places = list(self._model.keys.values()), self._model.spec.places()
        loads = [self._load(segment, choice) for segment, choice in places]
        measured = len(self._found.watts)
        energy_source = f"{self._meter.source}, watts of {measured} cells × latency"
        return ProfileRecord(
            name=name,
            model=self._model.name,
            source=source,
            steps=list(self._model.keys),
            places=places,
            device=device,
            batches=plan.batches,
            concurrency=plan.concurrency,
            latency_s=[
                [[cells[_name((k, b, c))].latency_s for b in plan.batches] for c in plan.concurrency]
                for k in keys
            ],
            energy_j=[
                [active.at(k, b) * cells[_name((k, b, 1))].latency_s for b in plan.batches] for k in keys
            ],
            instance_bytes=[size for size, _ in loads],
            load_s=[seconds for _, seconds in loads],
            idle_w=self._idle_w * self._share,
            element_bytes=self._executor.element_bytes(self._model.number),
            energy_source=self._meter.source if self._is_modelled else energy_source,
            spread=mean(cell.spread for cell in cells.values()),
        )

    def _cell(self, cell: Cell) -> Measured:
        """Run batches at the cell's concurrency repeatedly; return the median and spread of their times."""
        key, batch, count = cell
        lanes = [self._job(key, self._executor.example(key, batch)) for _ in range(count)]
        times_s: list[float] = []
        until_s = perf_counter() + self._plan.cell_s
        under_way = [begin() for begin in lanes]
        for number in range(self._plan.warm + self._plan.repeats):
            for lane, begin in enumerate(lanes):
                times_s.append(under_way[lane].finish().busy_s)
                under_way[lane] = begin()
            if number >= self._plan.warm + 2 and perf_counter() > until_s:
                break
        for one in under_way:
            one.finish()
        times_s = times_s[self._plan.warm * count :]
        low, *_, high = quantiles(times_s, n=10, method="inclusive")
        return Measured(latency_s=median(times_s), spread=high / low - 1)

    def _job(self, key: Key, inputs: Tensors) -> Callable[[], BatchUnderWay]:
        """Return a function that starts one batch of these inputs."""
        store, size = ActivationStore(), len(inputs[0])
        blocks = (block_of(0, key, (Request(id=0, arrival_s=0.0, count=size),)),)
        ids = list(range(size))
        batch = Batch(id=0, key=key, instance=-1, blocks=blocks, size=size)

        def begin() -> BatchUnderWay:
            store.put(ids, inputs)
            return BatchUnderWay(self._executor, store, batch)

        return begin

    def _slots(self, segment: int) -> list[Instance]:
        """Make enough instances to run every key of a segment at the highest concurrency."""
        choices = sorted(choice for at, choice in self._model.spec.places() if at == segment)
        needed = choices[-1:] if self._model.spec.nested else choices
        return [
            Instance(id=-1 - number, segment=segment, choice=choice, memory_bytes=0, model=self._model.number)
            for number, choice in enumerate(needed * max(self._plan.concurrency))
        ]

    def _power(self, segment: int) -> None:
        """Measure watts above idle while one lane runs a segment, at a few choices and batch sizes."""
        for key in keys_measured(self._model):
            for size in batches_measured(self._plan.batches) if key.segment == segment else ():
                if (name := _name((key, size, 1))) not in self._found.watts:
                    begin = self._job(key, self._executor.example(key, size))
                    watts = mean_power_w(self._meter, partial(_run, begin), at_least_s=self._plan.window_s)
                    self._found.watts[name] = max(0.0, watts - self._idle_w)

    def _active_power(self) -> ActivePower:
        if self._is_modelled:
            return constant_power(self._model, self._plan.active_w)
        sizes = batches_measured(self._plan.batches)
        watts = {
            (key, size): self._found.watts[_name((key, size, 1))]
            for key in keys_measured(self._model)
            for size in sizes
        }
        return measured_power(self._model, sizes, watts)

    def _load(self, segment: int, choice: int) -> tuple[int, float]:
        """Measure the bytes and time of loading one instance."""
        times_s, size = [], 0
        for _ in range(3):
            slot = Instance(id=-9, segment=segment, choice=choice, memory_bytes=0, model=self._model.number)
            began_s = perf_counter()
            size = self._executor.load(slot)
            times_s.append(perf_counter() - began_s)
            self._executor.unload(slot.id)
        return size, median(times_s)


def _run(begin: Callable[[], BatchUnderWay]) -> None:
    begin().finish()


def _name(cell: Cell) -> str:
    key, batch, count = cell
    return f"{key.segment}/{key.choice}/{key.previous}/{batch}/{count}"
