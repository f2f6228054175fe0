"""Measures a model on a device: latency, energy and memory by key, batch size and concurrency.

A latency is the time of a whole batch as a server runs it: gather inputs, run, store outputs. Energy is
power, measured at a few points of each segment, times latency.

Without a limit on time every cell of the table is measured. With one, measuring begins with what says most
about the rest, and `record` fills in the rest.
"""

import logging
import os
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import product
from math import inf, log2
from pathlib import Path
from statistics import mean, median, median_low, quantiles
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct

from slimsched.core.config import UNREADABLE, Amount, DataError, Finite, PositiveSeconds
from slimsched.core.version import __version__
from slimsched.serving.domain.cluster import Host, Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import IDLE_W, WHILE_BUSY, ProfileRecord
from slimsched.serving.domain.request import Batch, Key, Request, block_of
from slimsched.serving.live.batches import ActivationStore, BatchUnderWay
from slimsched.serving.live.executor import CpuExecutor, Executor, HostedModel
from slimsched.serving.live.processes import activity_of
from slimsched.serving.live.sensors import Modelled, PowerMeter, open_meter, open_nvml
from slimsched.serving.measure.machine import processor
from slimsched.serving.measure.missing import circumstances

# -- Power above idle by key and batch size, measured at a few points and interpolated in between.


def active_w(watts: Mapping[tuple[Key, int], float], key: Key, batch: int) -> float | None:
    """Interpolate, linearly in the choice's position and in the logarithm of the batch size.

    `watts` was measured by key and batch size; None if nothing was in the segment.
    """
    rows: dict[int, dict[float, float]] = {}
    for (other, size), measured_w in watts.items():
        if other.segment == key.segment:
            rows.setdefault(other.choice, {})[log2(size)] = measured_w
    by_choice = {choice: _interpolated(row, log2(batch)) for choice, row in rows.items()}
    return _interpolated(by_choice, key.choice) if by_choice else None


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


# -- Measures mean power while some work runs repeatedly, between two ticks of a counter.

PATIENCE_S = 10.0


def mean_power_w(meter: PowerMeter, work: Callable[[], object], *, at_least_s: float) -> float | None:
    """Return the mean watts from the counter's first change to its first change after `at_least_s`.

    None if it does not change twice in ten seconds.

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
        told = "%s changed less than twice in %g s; power is modelled there"
        logging.getLogger("slim.profile").warning(told, meter.source, PATIENCE_S)
        return None
    (start_s, start_j), (end_s, end_j) = changes[0], changes[-1]
    return (end_j - start_j) / (end_s - start_s)


MOST_HELD = 32
"""How many instances are loaded at once; a GPU has streams for twice as many."""

POWER_AFTER = 0.8
"""Share of the time for the cells; the rest is for the power."""

LOADS = 3
"""How often each part of a model is loaded where there is time for that."""

SAVED_EVERY = 50
"""Cells after which an unfinished run is kept."""

IDLE_S = 0.3
"""How long idle power is measured."""

Cell = tuple[Key, int, int]
"""A key, a batch size, and how many such batches run at once."""


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

    batches: tuple[int, ...]  # the most useful ones first, if there is not time for all
    concurrency: tuple[int, ...]
    seconds: float = inf  # for all cells and the power; what is measured last may take longer
    repeats: int = 7
    warm: int = 2
    cell_s: float = 60.0
    longest_s: float = inf  # cells are left out whose batches would take longer
    window_s: float = 0.3  # of each power measurement
    active_w: float = 0.0  # power above idle while busy, where no meter can read it
    one_core: bool = False  # batches run on one core; how long they waited for it does not count

    def cells(self, model: ServedModel) -> list[Cell]:
        """Return every (key, batch, concurrency): by segment, or the most useful ones first if time is short.

        The first plan at the first two sizes tells most, then the others, then the other sizes.
        """
        plans, sizes, (one, *more) = model.spec.plans, self.batches, self.concurrency
        if self.seconds == inf:
            keys = sorted(model.keys.values(), key=lambda key: (key.segment, key.choice))
            return [(key, size, count) for key in keys for count in self.concurrency for size in sizes]
        rows = [(plan, size, one) for plan in plans for size in sizes[:2]]
        rows += [(plan, size, one) for size in sizes[2:] for plan in plans]
        rows += [(plan, size, count) for count in more for size in sizes for plan in plans]
        cells = [(key, size, count) for plan, size, count in rows for key in model.legs(plan)]
        return list(dict.fromkeys(cells))


class Profiler:
    """Measures cell by cell; with `keep`, results are in that file so that an interrupted run can resume.

    `idle_w` is the idle power of the whole device that the meter reads, `share` this model's part of it.
    """

    def __init__(
        self,
        executor: Executor,
        model: ServedModel,
        meter: PowerMeter,
        plan: MeasuringPlan,
        keep: Path | None,
        idle_w: float,
        *,
        share: float = 1.0,
    ) -> None:
        self._executor, self._model, self._meter, self._plan = executor, model, meter, plan
        self._keep, self._idle_w, self._share = keep, idle_w, share
        self._found = Kept()
        self._cells = plan.cells(model)
        self._is_hurried = plan.seconds < inf
        self._held: list[Instance] = []
        self._loads: dict[tuple[int, int], list[tuple[int, float]]] = {}  # bytes and seconds
        self._until_s = inf
        if keep is not None and keep.is_file():
            try:
                self._found = msgspec.json.decode(keep.read_bytes(), type=Kept)
            except UNREADABLE as error:
                raise DataError(f"{keep} is damaged ({error}); remove it to measure afresh") from None

    def measure(self, progress: Callable[[int, int, Cell], None]) -> None:
        """Measure every cell that has no result yet, then power and loading, as long as there is time.

        Loading the first plan does not count. `progress` hears how many cells of how many are known.
        """
        for key in self._first_plan() if self._is_hurried else ():
            self._load_for(key, max(self._plan.concurrency))
        began_s = perf_counter()
        is_modelled = isinstance(self._meter, Modelled)
        self._until_s = began_s + self._plan.seconds * (1.0 if is_modelled else POWER_AFTER)
        try:
            self._measure_cells(progress)
            self._until_s = began_s + self._plan.seconds
            if not is_modelled:
                self._measure_power()
        finally:
            self._save()
        self._unload()
        if not self._is_hurried:
            self._loads.clear()
            for segment, choice in self._model.spec.places() * LOADS:
                self._load(segment, choice)
                self._unload()

    def _measure_cells(self, progress: Callable[[int, int, Cell], None]) -> None:
        known = self._found.cells
        for cell in (*self._cells, *self._cells):  # what seemed too slow may not be, now that more is known
            if known and perf_counter() > self._until_s:
                return
            key, size, count = cell
            is_slow = size > 1 and self._is_hurried and self._expected_s(cell) > self._plan.longest_s
            if _name(cell) not in known and not is_slow:
                self._load_for(key, count)
                known[_name(cell)] = self._cell(cell)
                if len(known) % SAVED_EVERY == 0:
                    self._save()
                progress(len(known), len(self._cells), cell)

    def _measure_power(self) -> None:
        """Measure watts above idle while one lane runs, at a few choices and batch sizes."""
        known = sorted({size for _, size, _ in self._latencies()})
        keys, sizes = keys_measured(self._model), {known[0], known[len(known) // 2], known[-1]}
        if self._is_hurried:
            keys, sizes = self._first_plan(), {known[0], known[-1]}
        for key, size in product(keys, sorted(sizes)):
            name = _name((key, size, 1))
            is_wanted = name not in self._found.watts and perf_counter() < self._until_s
            if is_wanted and (watts := self._watts(key, size)) is not None:
                self._found.watts[name] = watts

    def _watts(self, key: Key, size: int) -> float | None:
        self._load_for(key, 1)
        begin = self._job(key, size)
        watts = mean_power_w(self._meter, lambda: begin().finish(), at_least_s=self._plan.window_s)
        return None if watts is None else max(0.0, watts - self._idle_w)

    def _first_plan(self) -> list[Key]:
        return list(self._model.legs(self._model.spec.plans[0]))

    def _load_for(self, key: Key, count: int) -> None:
        """Load instances until this many batches of a key can run at once."""
        places = [place for place in self._model.spec.places() if place[0] == key.segment]
        place = places[-1] if self._model.spec.nested else (key.segment, key.choice)
        # in a hurry all parts stay loaded; else one part is measured after the other
        most = MOST_HELD if self._is_hurried else max(self._plan.concurrency)
        while [(slot.segment, slot.choice) for slot in self._held].count(place) < count:
            if len(self._held) >= most:
                self._unload()
            self._load(*place)

    def _load(self, segment: int, choice: int) -> None:
        """Load an instance; note its bytes and how long that took."""
        number, model = -1 - len(self._held), self._model.number
        slot = Instance(id=number, segment=segment, choice=choice, memory_bytes=0, model=model)
        began_s = perf_counter()
        size = self._executor.load(slot)
        self._loads.setdefault((segment, choice), []).append((size, perf_counter() - began_s))
        self._held.append(slot)

    def _unload(self) -> None:
        while self._held:
            self._executor.unload(self._held.pop().id)

    def _expected_s(self, cell: Cell) -> float:
        return _Table(self._model, self._latencies()).latency_s(*cell) if self._found.cells else 0.0

    def record(
        self, name: str, source: str, device: dict[str, str], of: ServedModel | None = None
    ) -> ProfileRecord:
        """Return the profile of a model `of` which this one has some plans; by default of this one."""
        model, measured = of or self._model, self._latencies()
        table = _Table(model, measured)
        batches = tuple(sorted({size for _, size, _ in measured}))
        counts = tuple(sorted({count for _, _, count in measured}))
        keys, places = list(model.keys.values()), model.spec.places()
        loads = [self._load_cost(model, place) for place in places]
        modelled = f"modelled: {self._plan.active_w:g}{WHILE_BUSY}"
        by_meter = f"{self._meter.source}, watts of {len(self._found.watts)} cells × latency"
        return ProfileRecord(
            name=name,
            model=model.name,
            source=source,
            steps=list(model.keys),
            places=places,
            device=device,
            batches=batches,
            concurrency=counts,
            latency_s=[[[table.latency_s(k, b, c) for b in batches] for c in counts] for k in keys],
            energy_j=[[self._active_w(k, b) * table.latency_s(k, b, 1) for b in batches] for k in keys],
            instance_bytes=[size for size, _ in loads],
            load_s=[seconds for _, seconds in loads],
            idle_w=self._idle_w * self._share,
            element_bytes=self._executor.element_bytes(model.number),
            energy_source=by_meter if self._found.watts else modelled,
            spread=mean(cell.spread for cell in self._found.cells.values()),
        )

    def _latencies(self) -> dict[Cell, float]:
        """Return what was measured, by cell."""
        known = self._found.cells
        return {cell: known[_name(cell)].latency_s for cell in self._cells if _name(cell) in known}

    def _save(self) -> None:
        if self._keep is not None:
            self._keep.write_bytes(msgspec.json.encode(self._found))

    def _cell(self, cell: Cell) -> Measured:
        """Run batches at the cell's concurrency repeatedly; return the median and spread of their times."""
        key, batch, count = cell
        lanes = [self._job(key, batch) for _ in range(count)]
        times_s: list[float] = []
        rounds, until_s = self._plan.warm + self._plan.repeats, perf_counter() + self._plan.cell_s
        waited_s, under_way = self._waited_s(), [begin() for begin in lanes]
        for number in range(1, rounds + 1):
            now_s = perf_counter()
            enough = number >= self._plan.warm + 3 and now_s > until_s
            is_last = number == rounds or enough or now_s > self._until_s
            for lane, begin in enumerate(lanes):
                busy_s = under_way[lane].finish().busy_s
                times_s.append(max(1e-6, busy_s - self._waited_s() + waited_s))
                if not is_last:
                    waited_s, under_way[lane] = self._waited_s(), begin()
            if is_last:
                break
        times_s = times_s[self._plan.warm * count :] or times_s
        low, *_, high = quantiles(times_s, n=10, method="inclusive") if len(times_s) > 1 else (1.0, 1.0)
        return Measured(latency_s=median(times_s), spread=high / low - 1)

    def _waited_s(self) -> float:
        return activity_of(os.getpid()).waited_s if self._plan.one_core else 0.0

    def _job(self, key: Key, size: int) -> Callable[[], BatchUnderWay]:
        """Return a function that starts one batch of this size."""
        store, inputs = ActivationStore(), self._executor.example(key, size)
        blocks = (block_of(0, key, (Request(id=0, arrival_s=0.0, count=size),)),)
        ids = list(range(size))
        batch = Batch(id=0, key=key, instance=-1, blocks=blocks, size=size)

        def begin() -> BatchUnderWay:
            store.put(ids, inputs)
            return BatchUnderWay(self._executor, store, batch)

        return begin

    def _active_w(self, key: Key, batch: int) -> float:
        """Return the power above idle; without a meter as given, in segments that were left out as usual."""
        watts = self._found.watts
        by_key = {cell[:2]: watts[_name(cell)] for cell in self._cells if _name(cell) in watts}
        usual_w = mean(watts.values()) if watts else self._plan.active_w
        measured_w = active_w(by_key, key, batch)
        return usual_w if measured_w is None else measured_w

    def _load_cost(self, model: ServedModel, place: tuple[int, int]) -> tuple[int, float]:
        """Return bytes and time of loading a place; by its weights where it was not loaded."""
        weights, known = model.figures.weights, place
        if place not in self._loads:
            known = max(one for one in self._loads if one[0] == place[0])
        share = max(1, weights[place]) / max(1, weights[known])
        sizes, times_s = zip(*self._loads[known], strict=True)
        return round(share * max(sizes)), share * median_low(times_s)


class _Table:
    """The latencies of a model's keys by those of some of them."""

    def __init__(self, model: ServedModel, measured: Mapping[Cell, float]) -> None:
        self._model = model
        self._rows: dict[tuple[Key, int], dict[float, float]] = {}
        for (key, batch, count), latency_s in measured.items():
            self._rows.setdefault((key, count), {})[batch] = latency_s

    def latency_s(self, key: Key, batch: int, count: int) -> float:
        """Return what was measured; else by other batch sizes of the key, or by the arithmetic of others."""
        if row := self._rows.get((key, count)):
            return _proportional(row, batch)
        keys = [other for other, at in self._rows if at == count]
        if not keys:  # nobody knows how batches share the device: as if one ran after the other
            return self.latency_s(key, batch, 1) * count
        near = [other for other in keys if other.segment == key.segment] or keys
        points = {self._macs(other): _proportional(self._rows[other, count], batch) for other in near}
        return _proportional(points, self._macs(key))

    def _macs(self, key: Key) -> float:
        return max(1, self._model.figures.steps[key.step].macs)


def _proportional(points: Mapping[float, float], at: float) -> float:
    """Interpolate linearly; before the first point and beyond the last one in proportion."""
    return _interpolated(points, at) * at / min(max(at, min(points)), max(points))


def _interpolated(points: Mapping[Any, float], at: float) -> float:
    known = sorted(points)
    return float(np.interp(at, known, [points[one] for one in known]))


# -- Opens a device.


def open_profiler(
    hosted: HostedModel,
    model: ServedModel,
    host: Host,
    plan: MeasuringPlan,
    keep: Path | None = None,
    *,
    idle_w: float = IDLE_W,
) -> Profiler:
    """Return a profiler of a hosted model, or of some plans of it; `idle_w` is for where no meter reads."""
    if host.kind == "cpu":
        executor: Executor = CpuExecutor([hosted], threads=host.threads)
        meter = open_meter("cpu", idle_w)
    else:
        from slimsched.serving.live.cuda import CudaExecutor

        buckets = tuple(sorted(plan.batches)) if plan.seconds < inf else None  # else those of a server
        executor = CudaExecutor([hosted], buckets=buckets, batch_limit=max(plan.batches))
        meter = open_nvml(host.gpu) or Modelled(idle_w)
    if not isinstance(meter, Modelled):
        measured_w = mean_power_w(meter, lambda: sleep(0.01), at_least_s=IDLE_S)
        meter, idle_w = (Modelled(idle_w), idle_w) if measured_w is None else (meter, measured_w)
    return Profiler(executor, model, meter, plan, keep, idle_w, share=host.mps_percentage / 100)


def device_facts(host: Host) -> tuple[str, dict[str, str]]:
    """Return the name of the processor or of the GPU, and what a profile says of where it was measured."""
    name = processor()
    facts = {"kind": host.kind, "processor": name}
    if host.kind == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name, count = properties.name, str(properties.multi_processor_count)
        facts = {"kind": host.kind, "gpu": name, "multiprocessors": count}
    software = {
        "python": platform.python_version(),
        "slim": __version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    return name, facts | circumstances(host) | software


def _name(cell: Cell) -> str:
    key, batch, count = cell
    return f"{key.segment}/{key.choice}/{key.previous}/{batch}/{count}"
