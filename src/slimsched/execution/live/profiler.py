"""Measures a device into a profile: latency, energy and memory by key, batch size and concurrency.

Every figure is of a whole batch as a server runs it: gather inputs, run, keep outputs.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median, quantiles
from time import perf_counter

import msgspec
import torch
from msgspec import Struct

from slimsched.domain.batch import Batch
from slimsched.domain.block import block_of
from slimsched.domain.instance import Instance
from slimsched.domain.key import KEYS, Key
from slimsched.domain.network import NetworkShape
from slimsched.domain.profile_record import PLACES, ProfileRecord
from slimsched.domain.request import Request
from slimsched.execution.live.activation_store import ActivationStore
from slimsched.execution.live.batch_run import run_batch
from slimsched.execution.live.executor import Executor
from slimsched.execution.live.power_meter import PowerMeter

Cell = tuple[Key, int, int]


class Measured(Struct, frozen=True, kw_only=True):
    """One cell of the table: median and spread of a batch's time, and its energy above idle."""

    latency_s: float
    spread: float
    energy_j: float


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure and how often."""

    batches: tuple[int, ...]
    concurrency: tuple[int, ...]
    repeats: int = 7
    warm: int = 2
    active_w: float = 0.0  # power above idle while busy, where no meter can read it

    def cells(self) -> Iterator[Cell]:
        """Every (key, batch, concurrency), in a fixed order."""
        for key in KEYS.values():
            for count in self.concurrency:
                for batch in self.batches:
                    yield key, batch, count

    def __len__(self) -> int:
        return len(KEYS) * len(self.concurrency) * len(self.batches)


class Profiler:
    """Measures cell by cell, keeping what it has in a file so that an interrupted run goes on."""

    def __init__(
        self,
        executor: Executor,
        shape: NetworkShape,
        meter: PowerMeter,
        plan: Plan,
        keep: Path,
        idle_w: float,
    ) -> None:
        self._executor, self._shape, self._meter, self._plan = executor, shape, meter, plan
        self._keep, self._idle_w = keep, idle_w
        self._lanes = ThreadPoolExecutor(max(plan.concurrency))
        self._found: dict[str, Measured] = {}
        if keep.is_file():
            self._found = msgspec.json.decode(keep.read_bytes(), type=dict[str, Measured])

    def measure(self, progress: Callable[[Cell], None]) -> None:
        """Measure every cell that is not there yet."""
        slots = [Instance(id=-1 - s, segment=s, width=1.0, memory_bytes=0) for s in range(4)]
        for slot in slots:
            self._executor.load(slot)
        for number, cell in enumerate(self._plan.cells()):
            if _name(cell) not in self._found:
                self._found[_name(cell)] = self._cell(cell)
                if number % 20 == 0:
                    self._keep.write_bytes(msgspec.json.encode(self._found))
            progress(cell)
        self._keep.write_bytes(msgspec.json.encode(self._found))
        for slot in slots:
            self._executor.unload(slot.id)

    def record(self, name: str, source: str, device: dict[str, str]) -> ProfileRecord:
        """The finished table."""
        plan, found = self._plan, self._found
        loads = [self._load(segment, width) for segment, width in PLACES]
        return ProfileRecord(
            name=name,
            source=source,
            device=device,
            batches=plan.batches,
            concurrency=plan.concurrency,
            latency_s=[
                [[found[_name((k, b, c))].latency_s for b in plan.batches] for c in plan.concurrency]
                for k in KEYS.values()
            ],
            energy_j=[[found[_name((k, b, 1))].energy_j for b in plan.batches] for k in KEYS.values()],
            instance_bytes=[size for size, _ in loads],
            load_s=[seconds for _, seconds in loads],
            idle_w=self._idle_w,
            element_bytes=4 if self._executor.element_bytes == 4 else 2,
            energy_source=self._meter.source,
            spread=mean(cell.spread for cell in found.values()),
        )

    def _cell(self, cell: Cell) -> Measured:
        """Run `count` batches side by side, again and again; the median of all their times."""
        key, batch, count = cell
        for _ in range(self._plan.warm):
            self._together(key, batch, count)
        before = self._meter.read(0.0)
        times_s = [t for _ in range(self._plan.repeats) for t in self._together(key, batch, count)]
        after = self._meter.read(0.0)
        latency_s = median(times_s)
        low, *_, high = quantiles(times_s, n=10) if len(times_s) > 1 else (latency_s, latency_s)
        if "modelled" in self._meter.source:
            energy_j = self._plan.active_w * latency_s
        else:
            above_j = after.energy_j - before.energy_j - self._idle_w * (after.at_s - before.at_s)
            energy_j = max(0.0, above_j) / (self._plan.repeats * count)
        return Measured(latency_s=latency_s, spread=high / low - 1, energy_j=energy_j)

    def _together(self, key: Key, batch: int, count: int) -> list[float]:
        stores = [self._inputs(key, batch) for _ in range(count)]
        if count == 1:
            return [run_batch(self._executor, *stores[0]).busy_s]
        runs = [self._lanes.submit(run_batch, self._executor, *store) for store in stores]
        return [run.result().busy_s for run in runs]

    def _inputs(self, key: Key, size: int) -> tuple[ActivationStore, Batch]:
        """A batch of random inputs of the shape the key takes, waiting in a store."""
        store, requests = ActivationStore(), tuple(Request(id=n, arrival_s=0.0) for n in range(size))
        side = self._shape.image_size
        if key.segment == 0:
            rows = torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8)
        else:
            channels = self._shape.channels_at(key.segment - 1, key.previous)
            side = self._shape.side(key.segment - 1)
            rows = self._executor.activation((size, channels, side, side))
        store.put([request.id for request in requests], rows)
        return store, Batch(id=0, key=key, instance=-1, blocks=(block_of(0, key, requests),), size=size)

    def _load(self, segment: int, width: float) -> tuple[int, float]:
        """Bytes and time of loading one instance of (segment, width) alone."""
        times_s, size = [], 0
        for _ in range(3):
            slot = Instance(id=-9, segment=segment, width=width, memory_bytes=0)
            began_s = perf_counter()
            size = self._executor.load(slot)
            times_s.append(perf_counter() - began_s)
            self._executor.unload(slot.id)
        return size, median(times_s)


def _name(cell: Cell) -> str:
    key, batch, count = cell
    return f"{key.segment}/{key.width:g}/{key.previous or 0:g}/{batch}/{count}"
