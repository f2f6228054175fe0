"""Measures a device into a profile: latency, energy and memory by key, batch size and concurrency.

Every latency is that of a whole batch as a server runs it: gather inputs, run, keep outputs. Energy is
measured as power, at a few points of each segment, and multiplied by latency.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median, quantiles
from time import perf_counter

import msgspec
import torch
from msgspec import Struct

from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.batch import Batch
from slimsched.serving.domain.block import block_of
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.domain.profile_record import PLACES, ProfileRecord
from slimsched.serving.domain.request import Request
from slimsched.serving.execution.live.activation_store import ActivationStore
from slimsched.serving.execution.live.active_power import WIDTHS_MEASURED, ActivePower, batches_measured
from slimsched.serving.execution.live.batch_run import BatchUnderWay
from slimsched.serving.execution.live.executor import Executor
from slimsched.serving.execution.live.power_meter import PowerMeter
from slimsched.serving.execution.live.power_window import mean_power_w

Cell = tuple[Key, int, int]


class Measured(Struct, frozen=True, kw_only=True):
    """One cell of the table: median and spread of a batch's time."""

    latency_s: float
    spread: float


class Kept(Struct, kw_only=True):
    """What an interrupted run has so far."""

    cells: dict[str, Measured] = {}
    watts: dict[str, float] = {}


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure, how often, and how long at most; three runs are the least."""

    batches: tuple[int, ...]
    concurrency: tuple[int, ...]
    repeats: int = 7
    warm: int = 2
    cell_s: float = 60.0
    window_s: float = 0.3  # of each power measurement
    active_w: float = 0.0  # power above idle while busy, where no meter can read it

    def cells(self, segment: int) -> Iterator[Cell]:
        """Every (key, batch, concurrency) of a segment, in a fixed order."""
        for key in KEYS.values():
            for count in self.concurrency if key.segment == segment else ():
                for batch in self.batches:
                    yield key, batch, count

    def __len__(self) -> int:
        return len(KEYS) * len(self.concurrency) * len(self.batches)


class Profiler:
    """Measures cell by cell, keeping what it has in a file so that an interrupted run goes on.

    `idle_w` is the idle power of the whole device that the meter reads, `share` how much of it is ours.
    """

    def __init__(
        self,
        executor: Executor,
        shape: NetworkShape,
        meter: PowerMeter,
        plan: Plan,
        keep: Path,
        idle_w: float,
        *,
        share: float = 1.0,
    ) -> None:
        self._executor, self._shape, self._meter, self._plan = executor, shape, meter, plan
        self._keep, self._idle_w, self._share = keep, idle_w, share
        self._is_modelled = "modelled" in meter.source
        self._found = Kept()
        if keep.is_file():
            self._found = msgspec.json.decode(keep.read_bytes(), type=Kept)

    @property
    def cells(self) -> int:
        """How many there are to measure."""
        return len(self._plan)

    def measure(self, progress: Callable[[Cell], None]) -> None:
        """Measure every cell that is not there yet, one segment after another."""
        for segment in range(SEGMENTS):
            slots = [
                Instance(id=-1 - number, segment=segment, width=1.0, memory_bytes=0)
                for number in range(max(self._plan.concurrency))
            ]
            for slot in slots:
                self._executor.load(slot)
            for number, cell in enumerate(self._plan.cells(segment)):
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
        """The finished table."""
        plan, cells, active = self._plan, self._found.cells, self._active_power()
        loads = [self._load(segment, width) for segment, width in PLACES]
        measured = len(self._found.watts)
        energy_source = f"{self._meter.source}, watts of {measured} cells × latency"
        return ProfileRecord(
            name=name,
            source=source,
            device=device,
            batches=plan.batches,
            concurrency=plan.concurrency,
            latency_s=[
                [[cells[_name((k, b, c))].latency_s for b in plan.batches] for c in plan.concurrency]
                for k in KEYS.values()
            ],
            energy_j=[
                [active.at(k, b) * cells[_name((k, b, 1))].latency_s for b in plan.batches]
                for k in KEYS.values()
            ],
            instance_bytes=[size for size, _ in loads],
            load_s=[seconds for _, seconds in loads],
            idle_w=self._idle_w * self._share,
            element_bytes=4 if self._executor.element_bytes == 4 else 2,
            energy_source=self._meter.source if self._is_modelled else energy_source,
            spread=mean(cell.spread for cell in cells.values()),
        )

    def _cell(self, cell: Cell) -> Measured:
        """Keep `count` batches under way, again and again; the median of all their times."""
        key, batch, count = cell
        lanes = [self._job(key, self._inputs(key, batch)) for _ in range(count)]
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

    def _job(self, key: Key, inputs: torch.Tensor) -> Callable[[], BatchUnderWay]:
        """What begins one batch of these inputs."""
        store, requests = ActivationStore(), tuple(Request(id=n, arrival_s=0.0) for n in range(len(inputs)))
        ids = [request.id for request in requests]
        blocks = (block_of(0, key, requests),)
        batch = Batch(id=0, key=key, instance=-1, blocks=blocks, size=len(inputs))

        def begin() -> BatchUnderWay:
            store.put(ids, inputs)
            return BatchUnderWay(self._executor, store, batch)

        return begin

    def _inputs(self, key: Key, size: int) -> torch.Tensor:
        """Random inputs of the shape the key takes."""
        if key.segment == 0:
            side = self._shape.image_size
            return torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8)
        channels, side = (
            self._shape.channels_at(key.segment - 1, key.previous),
            self._shape.side(key.segment - 1),
        )
        return self._executor.activation((size, channels, side, side))

    def _power(self, segment: int) -> None:
        """Watts above idle while one lane runs batches of a segment, at a few widths and sizes."""
        for width in WIDTHS_MEASURED:
            for size in batches_measured(self._plan.batches):
                key = KEYS[segment, width, width if segment else None]
                if (name := _name((key, size, 1))) not in self._found.watts:
                    begin = self._job(key, self._inputs(key, size))
                    watts = mean_power_w(self._meter, partial(_run, begin), at_least_s=self._plan.window_s)
                    self._found.watts[name] = max(0.0, watts - self._idle_w)

    def _active_power(self) -> ActivePower:
        if self._is_modelled:
            watts = [[[self._plan.active_w]]] * SEGMENTS
            return ActivePower(widths=(1.0,), batches=(1,), watts=watts)
        sizes = batches_measured(self._plan.batches)
        return ActivePower(
            widths=WIDTHS_MEASURED,
            batches=sizes,
            watts=[
                [
                    [self._found.watts[_name((KEYS[s, w, w if s else None], size, 1))] for size in sizes]
                    for w in WIDTHS_MEASURED
                ]
                for s in range(SEGMENTS)
            ],
        )

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


def _run(begin: Callable[[], BatchUnderWay]) -> None:
    begin().finish()


def _name(cell: Cell) -> str:
    key, batch, count = cell
    return f"{key.segment}/{key.width:g}/{key.previous or 0:g}/{batch}/{count}"
