"""The greedy local scheduler: Algorithm 1 of the paper as a pure state machine.

One event and the time go in, commands come out. After each event the scheduler does what the paper's loop
does: serve the head of the queue while a free instance fits (lines 2-10), load an instance where none fits
(lines 13-20), and unload instances that have been idle for t_idle (lines 21-25). A head that cannot be served
goes back to the front. In plain FIFO it holds up everything behind it, as line 9 says.

The paper lists the trigger Q_th and the cap N_new as options, but Algorithm 1 does not use them. Here, a key
that no loaded or loading instance fits gets one instance at once. A key whose instances are all busy gets up
to N_new more when at least Q_th of its requests wait.

Parts, in this order: commands and events, the queue by key, the instances of the device, options, the check
whether one more instance may be loaded (`LoadGate`), and the scheduler itself.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, assert_never

from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import (
    Amount,
    Bytes,
    ConfigError,
    Count,
    CountOrZero,
    Name,
    Seconds,
    SlimError,
    Whole,
    check,
)
from slimsched.serving.domain.cluster import Instance, InstanceState, next_state
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.profile import BatchTime, Profile, useful_size
from slimsched.serving.domain.request import (
    Batch,
    Block,
    DropReason,
    Key,
    RequestsCancelled,
    block_of,
    onward,
)

# -- The commands that a scheduler gives, then the events that it is told.
#
# Their names are the tags in event logs: renaming one makes old logs unreadable.


class RunBatch(Struct, frozen=True, kw_only=True, tag=True):
    """Run a batch on its instance; `why` says why it has this size."""

    batch: Batch
    why: str


class LoadInstance(Struct, frozen=True, kw_only=True, tag=True):
    """Load an instance."""

    instance: Instance


class UnloadInstance(Struct, frozen=True, kw_only=True, tag=True):
    """Unload an instance and free its memory."""

    instance: int


class DropBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Give up a block, for this reason."""

    block: Block
    reason: DropReason


Command = RunBatch | LoadInstance | UnloadInstance | DropBlock | WakeAt


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The device is there, with nothing loaded.

    `models` are those to serve, where they are no longer those that the cluster began with.
    """

    models: tuple[ModelEntry, ...] = ()


class BlockArrived(Struct, frozen=True, kw_only=True, tag=True):
    """A block and its inputs have arrived at this server."""

    block: Block


class BatchFinished(Struct, frozen=True, kw_only=True, tag=True):
    """An instance has run its batch, which drew `energy_j` above idle."""

    instance: int
    busy_s: float
    energy_j: float


class InstanceLoaded(Struct, frozen=True, kw_only=True, tag=True):
    """An instance is loaded and ready."""

    instance: int


class InstanceUnloaded(Struct, frozen=True, kw_only=True, tag=True):
    """An instance is unloaded and its memory is free."""

    instance: int


class TelemetrySampled(Struct, frozen=True, kw_only=True, tag=True):
    """The latest sensor reading: utilization in [0, 1] and mean power, over the last period.

    `measured` says that utilization and memory were asked of the device: `vram_bytes` is then what the server
    holds beyond what it held with nothing loaded. Else `vram_bytes` is a sum of profiles. `free_bytes` is
    what the device has left for anyone, where it was asked.
    """

    utilization: float
    power_w: float
    vram_bytes: int
    measured: bool = False
    free_bytes: int | None = None


Event = (
    Started
    | BlockArrived
    | RequestsCancelled
    | BatchFinished
    | InstanceLoaded
    | InstanceUnloaded
    | TelemetrySampled
    | ModelsChanged
    | Wake
)


Rank = tuple[float, float, int]


class KeyQueue:
    """Holds blocks by key, in order of rank (priority, deadline, arrival); the lowest rank is the head.

    In plain FIFO only arrival counts.
    """

    def __init__(self, *, by_deadline: bool, by_priority: bool) -> None:
        self._by_deadline = by_deadline
        self._by_priority = by_priority
        self._heaps: dict[Key, list[tuple[Rank, Block]]] = {}
        self._sizes: dict[Key, int] = {}
        self._order: list[tuple[Rank, Key]] = []  # ranks of all blocks; may include blocks already served
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def size(self, key: Key) -> int:
        """Number of waiting examples of a key."""
        return self._sizes.get(key, 0)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys that have waiting requests."""
        return iter(self._heaps)

    def push(self, block: Block) -> None:
        """Add a block."""
        self._arrivals += 1
        rank = (
            -float(block.priority) if self._by_priority else 0.0,
            block.deadline_s if self._by_deadline else 0.0,
            self._arrivals,
        )
        key = block.key
        heap = self._heaps.get(key)
        if heap is None:
            self._heaps[key] = [(rank, block)]
            self._sizes[key] = block.examples
        else:
            heappush(heap, (rank, block))
            self._sizes[key] += block.examples
        heappush(self._order, (rank, key))

    def head(self, held_up: Collection[Key] = ()) -> Key | None:
        """Return the key served next, leaving out those that are held up."""
        if held_up:
            return next((key for key in self.in_order() if key not in held_up), None)
        order, heaps = self._order, self._heaps
        while order:
            rank, key = order[0]
            heap = heaps.get(key)
            if heap is not None and heap[0][0] == rank:
                return key
            heappop(order)  # its block was served with an earlier one of its key
        return None

    def in_order(self) -> list[Key]:
        """List all waiting keys, most urgent first."""
        return sorted(self._heaps, key=lambda key: self._heaps[key][0][0])

    def pop(self, key: Key, limit: int) -> list[Block]:
        """Take up to `limit` examples of a key; split the last block if necessary."""
        taken: list[Block] = []
        heap = self._heaps[key]
        room = limit
        while heap and room > 0:
            rank, block = heap[0]
            count = block.examples
            if count <= room:
                heappop(heap)
            else:
                block, rest = block.split(room)
                heap[0] = (rank, rest)
                count = room
            taken.append(block)
            room -= count
        self._sizes[key] -= limit - room
        if not heap:
            del self._heaps[key], self._sizes[key]
        return taken

    def withdraw(self, requests: frozenset[int]) -> list[Block]:
        """Remove these examples from the queue; return the removed blocks or parts of blocks."""
        gone: list[Block] = []
        for key, heap in list(self._heaps.items()):
            left: list[tuple[Rank, Block]] = []
            for rank, block in heap:
                out, stay = block.split_off(requests)
                gone += [out] if out is not None else []
                left += [(rank, stay)] if stay is not None else []
            heap[:] = left
            heapify(heap)
            self._sizes[key] = sum(block.examples for _, block in heap)
            if not heap:
                del self._heaps[key], self._sizes[key]
        return gone

    def first(self, key: Key) -> Block:
        """Return the first block of a key without removing it."""
        return self._heaps[key][0][1]

    def validated(self) -> list[int]:
        """List the ids of all waiting examples, after a check of the sizes by key."""
        sizes = {key: sum(block.examples for _, block in heap) for key, heap in self._heaps.items()}
        check(sizes == self._sizes, "sizes {}, in the heaps {}", self._sizes, sizes)
        check(set(self.in_order()) == set(sizes), "keys {} wait", sizes)
        return [number for heap in self._heaps.values() for _, block in heap for number in block.ids]


class _Slot(Struct, eq=False):
    """An instance, when it was last used, and its state."""

    instance: Instance
    last_used_s: float
    state: InstanceState = InstanceState.LOADING


class Instances:
    """The list I of Algorithm 1, and the memory its instances use."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._nested: dict[int, bool] = {}
        self._slots: dict[int, _Slot] = {}
        self._by_segment: dict[int, list[list[_Slot]]] = {}
        self._next_id = 0
        self.memory_bytes = 0
        self.loaded_bytes = 0  # without those that are still loading
        for model in models:
            self.know(model)

    def __len__(self) -> int:
        return len(self._slots)

    def know(self, model: ServedModel) -> None:
        """Be ready for instances of one more model."""
        self._nested[model.number] = model.spec.nested
        self._by_segment[model.number] = [[] for _ in range(model.segments)]

    def of_model(self, model: int) -> list[tuple[Instance, InstanceState]]:
        """List the instances of a model, with their states."""
        return [(slot.instance, slot.state) for slots in self._by_segment[model] for slot in slots]

    def all(self) -> list[Instance]:
        """List all instances that are loaded, loading or unloading."""
        return [slot.instance for slot in self._slots.values()]

    def add(self, place: tuple[int, int, int], memory_bytes: int, now_s: float) -> Instance:
        """Add an instance for (model, segment, choice) that starts to load; its memory counts from now on."""
        self._next_id += 1
        model, segment, choice = place
        instance = Instance(
            id=self._next_id, segment=segment, choice=choice, memory_bytes=memory_bytes, model=model
        )
        slot = _Slot(instance, now_s)
        self._slots[instance.id] = slot
        self._by_segment[model][segment].append(slot)
        self.memory_bytes += memory_bytes
        return instance

    def step(self, instance_id: int, step: str, now_s: float) -> Instance:
        """Move an instance along its state table."""
        slot = self._slots[instance_id]
        slot.state = next_state(slot.instance, slot.state, step)
        slot.last_used_s = now_s
        if step == "loaded":
            self.loaded_bytes += slot.instance.memory_bytes
        elif slot.state is InstanceState.GONE:
            del self._slots[instance_id]
            self._by_segment[slot.instance.model][slot.instance.segment].remove(slot)
            self.memory_bytes -= slot.instance.memory_bytes
            self.loaded_bytes -= slot.instance.memory_bytes
        return slot.instance

    def free_best_fit(self, key: Key) -> Instance | None:
        """FINDFREEBESTFIT: return the free instance of the segment with the narrowest choice that fits."""
        best: Instance | None = None
        choice, nested, free = key.choice, self._nested[key.model], InstanceState.FREE
        for slot in self._by_segment[key.model][key.segment]:
            instance = slot.instance
            if (
                slot.state is free
                and (instance.choice == choice or (nested and instance.choice > choice))
                and (best is None or instance.choice < best.choice)
            ):
                best = instance
        return best

    def fitting(self, key: Key) -> tuple[int, int]:
        """Count the instances that could run this key: how many are busy, and how many are loading."""
        nested = self._nested[key.model]
        states = [
            slot.state
            for slot in self._by_segment[key.model][key.segment]
            if slot.instance.choice == key.choice or (nested and slot.instance.choice > key.choice)
        ]
        return states.count(InstanceState.BUSY), states.count(InstanceState.LOADING)

    def validated(self) -> list[int]:
        """List the ids of busy instances, after a check of the lists and of the memory."""
        listed = [s for lists in self._by_segment.values() for slots in lists for s in slots]
        slots = list(self._slots.values())
        check({id(slot) for slot in listed} == {id(slot) for slot in slots}, "lists differ: {}", listed)
        held = sum(slot.instance.memory_bytes for slot in slots)
        loaded = sum(s.instance.memory_bytes for s in slots if s.state is not InstanceState.LOADING)
        check((held, loaded) == (self.memory_bytes, self.loaded_bytes), "memory {} of {}", loaded, held)
        return sorted(slot.instance.id for slot in slots if slot.state is InstanceState.BUSY)

    def idle(self) -> list[tuple[float, Instance]]:
        """List free instances with the time they were last used, longest idle first."""
        slots = [s for s in self._slots.values() if s.state is InstanceState.FREE]
        return sorted(((s.last_used_s, s.instance) for s in slots), key=lambda pair: (pair[0], pair[1].id))


def resident_places(names: Iterable[str], models: Iterable[ServedModel]) -> list[tuple[int, int, int]]:
    """List (model, segment, choice) of all resident instances, in the order of the option's names.

    'widest' means the last choice of each segment, which contains the others. In a model that is not nested
    it means every choice.
    """
    served, residents = list(models), []
    for name in names:
        for model in served:
            for segment, choice in model.spec.places():
                choices = model.spec.segments[segment]
                is_widest = not model.spec.nested or choice == len(choices) - 1
                if is_widest if name == "widest" else choices[choice] == name:
                    residents.append((model.number, segment, choice))
    return residents


class SchedulerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults follow the paper; the comments give its symbols."""

    batch_limit: CountOrZero = 16  # B_max; 0, in a scenario: what suits the profile
    batch_limit_s: Seconds = 0.0  # about the longest time a batch may take, by profile; 0: no limit
    batch_limit_by: Literal["number", "profile"] = "number"  # profile: none larger than its key has use for
    vram_cap_bytes: Bytes = 8 * 2**30  # M_max
    instance_limit: Whole = 0  # most instances at once; 0: as many as memory holds, with CUDA 64
    utilization_block: Amount = 0.95  # U_blk
    idle_unload_s: Seconds = 5.0  # t_idle
    scale_trigger: Whole = 16  # Q_th
    scale_cap: Count = 2  # N_new
    resident: tuple[Name, ...] = ()  # choices that stay loaded in every segment, or 'widest'
    order: Literal["fifo", "deadline"] = "fifo"  # deadline: per-key queues, most urgent first
    early_drop: bool = False  # drop blocks that can no longer meet their deadline
    priorities: bool = False  # higher priority first


Cause = Literal["memory", "utilization"]


class Refusal(Struct, frozen=True):
    """Why an instance may not be loaded: the cause, and a sentence with places for its values."""

    cause: Cause
    reason: str
    values: tuple[object, ...]


class LoadGate:
    """CANLOAD, lines 13-20: whether memory and utilization of the device allow one more instance.

    Memory in use is the sum of the profiles of all instances. Where the driver asks the device, it is the
    last reading, changed by the profiles of what was loaded and unloaded since.
    """

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._sample: TelemetrySampled | None = None
        self._covered_bytes = 0  # by profile, of the instances that the last reading covers
        self.refused: Counter[str] = Counter()

    def note(self, sample: TelemetrySampled, instances: Instances) -> None:
        """Take a reading of the sensors into account."""
        self._sample = sample
        self._covered_bytes = instances.loaded_bytes

    def refusal(self, instances: Instances, memory_bytes: int) -> Refusal | None:
        """Say why an instance of this size may not be loaded now; None if it may."""
        refusal = self._for_memory(instances, memory_bytes) or self._for_utilization()
        if refusal is not None:
            self.refused[refusal.cause] += 1
        return refusal

    def fits(self, instances: Instances) -> bool:
        """Whether the instances are within the cap, where no sensor said that they take less."""
        is_measured = self._sample is not None and self._sample.measured
        return is_measured or instances.memory_bytes <= self._options.vram_cap_bytes

    def _for_memory(self, instances: Instances, memory_bytes: int) -> Refusal | None:
        """Line 15: VRAM_used + bytes ≤ M_max; where memory was asked, the device must have as much free.

        Not in the paper: a device may have a limit of its own, such as the number of CUDA streams.
        """
        limit = self._options.instance_limit
        if limit and len(instances) >= limit:
            return Refusal("memory", "{} instances are loaded, the limit is {}", (len(instances), limit))
        used, cap = instances.memory_bytes, self._options.vram_cap_bytes
        sample = self._sample
        if sample is not None and sample.measured and len(instances):  # else nothing could ever be loaded
            used = max(0, sample.vram_bytes + instances.memory_bytes - self._covered_bytes)
        if used + memory_bytes > cap:
            reason = "VRAM: {} bytes in use, {} more would pass the cap {}"
            return Refusal("memory", reason, (used, memory_bytes, cap))
        if sample is not None and sample.free_bytes is not None:
            free = sample.free_bytes - max(0, instances.memory_bytes - self._covered_bytes)
            if memory_bytes > free:
                return Refusal("memory", "VRAM: {} bytes free, {} needed", (free, memory_bytes))
        return None

    def _for_utilization(self) -> Refusal | None:
        """Lines 17-18: the latest utilization, if any, must be below U_blk."""
        block = self._options.utilization_block
        if self._sample is None or self._sample.utilization < block:
            return None
        reason = "utilization {:.0%} is not below the block {:.0%}"
        return Refusal("utilization", reason, (self._sample.utilization, block))


Finder = Callable[[ModelEntry], tuple[ServedModel, Profile]]
"""Finds a model that is added while the server runs, and what it costs on this device."""
STARVED_S = 0.25
"""How long a busy device may refuse to load the first instance for a key, in deadline order.

Then others wait until the device is idle enough to load it; else a rare key might never run.
"""

LAST_BATCH = 0.1
"""What the last batch counts in how long batches take beside their profile."""


class GreedyScheduler:
    """Batches requests by key, picks the best-fit free instance, loads more if needed, unloads idle ones."""

    def __init__(
        self,
        options: SchedulerOptions,
        profile: Profile,
        models: Sequence[ServedModel],
        *,
        find: Finder | None = None,
    ) -> None:
        if not options.batch_limit:
            raise ConfigError("batch_limit is 0, which only a scenario file may say; give 1 or more")
        self.options = options
        self.models = {model.number: model for model in models}
        self.instances = Instances(models)
        self._find = find
        self.queue = KeyQueue(by_deadline=options.order == "deadline", by_priority=options.priorities)
        self._waiting: dict[Key, tuple[str, tuple[object, ...]]] = {}
        self.profile = profile
        self.load_gate = LoadGate(options)
        self._running: dict[int, Batch] = {}
        self._batch_time = BatchTime(LAST_BATCH)
        self._next_batch = 0
        self._wake_s: float | None = None
        self._resident: set[int] = set()
        self._limits: dict[Key, int] = {}
        self._refused_s: dict[Key, float] = {}  # since when a key may not load its first instance

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Take one event into account and return what must now be done."""
        commands: list[Command] = []
        match event:
            case BlockArrived(block=block):
                self.queue.push(block)
            case BatchFinished(instance=instance, busy_s=busy_s):
                batch = self._running.pop(instance)
                if self.options.early_drop:  # else nobody asks
                    self._batch_time.note(self.profile.latency_s(batch.key, batch.size), busy_s)
                for one in (instance, *batch.also):
                    self.instances.step(one, "finished", now_s)
            case Started(models=entries):
                if entries:
                    self._begin_with(entries)
                return self._load_residents(self.models, now_s)
            case ModelsChanged(added=added, retired=retired):
                commands += self._change_models(added, retired, now_s)
            case RequestsCancelled(requests=requests):
                recalled = self.queue.withdraw(frozenset(requests))
                commands += [DropBlock(block=block, reason=DropReason.CANCELLED) for block in recalled]
            case InstanceLoaded(instance=instance):
                self.instances.step(instance, "loaded", now_s)
            case InstanceUnloaded(instance=instance):
                self.instances.step(instance, "unloaded", now_s)
            case TelemetrySampled():
                self.load_gate.note(event, self.instances)
            case Wake():
                self._wake_s = None
            case _:
                assert_never(event)
        commands += self._serve(now_s)
        if self._wake_s is None:
            commands += self._unload_idle(now_s)
        return commands

    def explain(self) -> dict[Key, str]:
        """Say, for each key that was tried last and could not run, why it had to wait."""
        return {key: reason.format(*values) for key, (reason, values) in self._waiting.items()}

    def validate(self) -> None:
        """Check that each example is in one place and that instances match batches; for tests."""
        running = [one for batch in self._running.values() for one in (batch.instance, *batch.also)]
        busy = self.instances.validated()
        check(sorted(running) == busy, "instances {} run batches, {} are busy", running, busy)
        ran = [number for batch in self._running.values() for block in batch.blocks for number in block.ids]
        known = [*ran, *self.queue.validated()]
        check(len(set(known)) == len(known), "an example is in two places: {}", known)
        check(self.load_gate.fits(self.instances), "{} bytes are loaded", self.instances.memory_bytes)

    @property
    def is_busy(self) -> bool:
        """Whether anything is queued or running."""
        return bool(self._running) or len(self.queue) > 0

    def queued_by_segment(self) -> tuple[int, ...]:
        """Count waiting requests by segment: first all segments of the first model, then of the next."""
        sizes = {number: [0] * model.segments for number, model in self.models.items()}
        for key in self.queue:
            sizes[key.model][key.segment] += self.queue.size(key)
        return tuple(size for model in sizes.values() for size in model)

    def _serve(self, now_s: float) -> list[Command]:
        """Lines 2-10: serve the head. In deadline order, a key that must wait does not hold up the others."""
        commands: list[Command] = []
        self._waiting.clear()
        held_up: set[Key] = set()
        while (key := self.queue.head(held_up)) is not None:
            if self.options.early_drop and (late := self._late(key, now_s)):
                commands += late
                continue
            instance = self.instances.free_best_fit(key)
            waits = instance is not None and self._waits_for_others(key)
            if instance is not None and not waits:
                commands.append(self._run(key, instance, now_s))
                continue
            if not waits:
                commands += self._scale_up(key, now_s)
            if self.options.order == "fifo" or now_s - self._refused_s.get(key, now_s) >= STARVED_S:
                break
            held_up.add(key)
        return commands

    def _waits_for_others(self, key: Key) -> bool:
        """Whether a batch whose answers are judged should wait for a busy instance of a later segment.

        Plans that go on from kept activations hold later segments only. Beside them a whole plan would stop
        half way and come back to the gateway, although it runs no sooner on a device that is busy.
        """
        if not key.ahead or not self.queue.first(key).keep:
            return False
        return any(
            self.instances.free_best_fit(leg) is None and self.instances.fitting(leg)[0]
            for leg in key.legs[1:]
        )

    def _run(self, key: Key, instance: Instance, now_s: float) -> RunBatch:
        """Lines 4 and 10: one key, at most B_max requests, on the instance found."""
        asked, limit = key, self._limits.get(key) or self._limit(key)
        if self.options.early_drop:
            limit = self._timely(key, limit, now_s)
        blocks = self.queue.pop(key, limit)
        size = sum([block.examples for block in blocks])
        also: list[int] = []
        if key.ahead:
            key, also = self._go_on(key, now_s)
        self._next_batch += 1
        number, ran = self._next_batch, tuple(blocks)
        batch = Batch(id=number, key=key, instance=instance.id, blocks=ran, size=size, also=tuple(also))
        self.instances.step(instance.id, "run", now_s)
        self._refused_s.pop(asked, None)
        self._running[instance.id] = batch
        return RunBatch(batch=batch, why="full" if size == limit else "all that waited")

    def _limit(self, key: Key) -> int:
        """Return B_max, or the largest batch that runs within `batch_limit_s`, rounded to a multiple of 8.

        By profile, it is the smallest batch that gives nearly the best throughput of this key.

        Kernels run faster on multiples of 8, and calls with several examples are split less often.
        """
        limit, longest_s = self.options.batch_limit, self.options.batch_limit_s
        if self.options.batch_limit_by == "profile":
            limit = min(limit, useful_size(self.profile, key, longest_s))
        while limit > 1 and 0.0 < longest_s < self.profile.latency_s(key, limit):
            limit -= 1
        if 8 < limit < self.options.batch_limit:
            limit = 8 * round(limit / 8)
        self._limits[key] = limit
        return limit

    def _go_on(self, key: Key, now_s: float) -> tuple[Key, list[int]]:
        """Return how far a key with choices ahead can go: up to the first segment without a free instance."""
        first, *further = key.legs
        also: list[int] = []
        for leg in further:
            instance = self.instances.free_best_fit(leg)
            if instance is None:
                break
            also.append(self.instances.step(instance.id, "run", now_s).id)
        return onward(first, key.ahead[: len(also)]), also

    def _took_s(self, key: Key, size: int) -> float:
        """Time that a batch will probably take: by profile, corrected by what batches took lately."""
        return self._batch_time.of(self.profile.latency_s(key, size))

    def _timely(self, key: Key, limit: int, now_s: float) -> int:
        """Return a batch size, at most the limit, with which the first block of a key is in time."""
        first = self.queue.first(key)
        if now_s + self._took_s(key, min(limit, self.queue.size(key))) <= first.deadline_s:
            return limit
        limit = min(limit, self.queue.size(key))
        while limit > first.examples and now_s + self._took_s(key, limit) > first.deadline_s:
            limit = max(first.examples, limit // 2)
        return limit

    def _late(self, key: Key, now_s: float) -> list[Command]:
        """Drop the requests of a key's first block that would miss their deadline even without the others."""
        block = self.queue.first(key)
        end_s = now_s + self._took_s(key, min(block.examples, self.options.batch_limit))
        if end_s <= block.deadline_s:
            return []
        self.queue.pop(key, block.examples)
        late, others = block.split_off({n for r in block.requests if r.deadline_s < end_s for n in r.ids})
        if others is not None:
            self.queue.push(block_of(block.id, key, others.requests, keep=block.keep))
        return [DropBlock(block=late, reason=DropReason.DEADLINE_OUT_OF_REACH)] if late is not None else []

    def _scale_up(self, key: Key, now_s: float) -> list[Command]:
        """CANLOAD, lines 13-20: load as many instances as the trigger and the cap allow."""
        busy, loading = self.instances.fitting(key)
        size, trigger = self.queue.size(key), self.options.scale_trigger
        if loading:
            self._waiting[key] = ("{} instance(s) that fit {} still loading", (loading, key))
            return []
        if busy and size < trigger:
            why = "all {} instance(s) that fit {} are busy; {} waiting, below the scale trigger {}"
            self._waiting[key] = (why, (busy, key, size, trigger))
            return []
        wanted = min(self.options.scale_cap, -(-size // self.options.batch_limit)) if busy else 1
        commands: list[Command] = []
        for _ in range(wanted):
            memory = self.profile.instance_bytes[key.place]
            refusal = self.load_gate.refusal(self.instances, memory)
            if refusal is not None:
                self._waiting[key] = refusal.reason, refusal.values
                if refusal.cause == "utilization" and not busy:
                    self._refused_s.setdefault(key, now_s)
                return commands
            commands.append(LoadInstance(instance=self.instances.add(key.place, memory, now_s)))
            self._waiting[key] = ("loading an instance for {}", (key,))
            self._refused_s.pop(key, None)
        return commands

    def is_warm(self, model: int) -> bool:
        """Whether nothing of a model is being loaded."""
        return all(state is not InstanceState.LOADING for _, state in self.instances.of_model(model))

    def _begin_with(self, entries: Sequence[ModelEntry]) -> None:
        """Serve these models instead of those that the cluster began with."""
        found = [self._found(entry) for entry in entries]
        self.models = {model.number: model for model, _ in found}
        self.instances = Instances([model for model, _ in found])
        self.profile = Profile.joined([part for _, part in found])

    def _change_models(
        self, added: Sequence[ModelEntry], retired: Sequence[int], now_s: float
    ) -> list[Command]:
        """Load what shall stay loaded of new models; let go of what is idle of those that went."""
        for model, part in [self._found(entry) for entry in added]:
            self.models[model.number] = model
            self.instances.know(model)
            self.profile = Profile.joined([*self.profile.parts, part])
        commands = self._load_residents([entry.number for entry in added], now_s)
        for number in retired:
            for instance, state in self.instances.of_model(number):
                self._resident.discard(instance.id)
                if state is InstanceState.FREE:
                    self.instances.step(instance.id, "unload", now_s)
                    commands.append(UnloadInstance(instance=instance.id))
        return commands

    def _found(self, entry: ModelEntry) -> tuple[ServedModel, Profile]:
        if self._find is None:
            raise SlimError("this server cannot change its models: nobody has told it where they come from")
        return self._find(entry)

    def _load_residents(self, models: Collection[int], now_s: float) -> list[Command]:
        """One instance of every resident choice in every segment of these models, as far as VRAM allows."""
        commands: list[Command] = []
        for place in resident_places(self.options.resident, self.models.values()):
            if place[0] not in models:
                continue
            memory = self.profile.instance_bytes[place]
            if self.instances.memory_bytes + memory <= self.options.vram_cap_bytes:
                instance = self.instances.add(place, memory, now_s)
                self._resident.add(instance.id)
                commands.append(LoadInstance(instance=instance))
        return commands

    def _unload_idle(self, now_s: float) -> list[Command]:
        """Lines 21-25: unload idle instances, then ask to be woken when the next one may be due."""
        commands: list[Command] = []
        t_idle = self.options.idle_unload_s
        for last_used_s, instance in self._removable():
            if now_s - last_used_s < t_idle:
                break
            self.instances.step(instance.id, "unload", now_s)
            commands.append(UnloadInstance(instance=instance.id))
        if len(self.instances) > len(self._resident):
            idle = self._removable()
            self._wake_s = max(now_s + 1e-3, (idle[0][0] if idle else now_s) + t_idle)
            commands.append(WakeAt(at_s=self._wake_s))
        return commands

    def _removable(self) -> list[tuple[float, Instance]]:
        """List idle instances that need not stay loaded, longest idle first."""
        idle = self.instances.idle()
        return [(at, one) for at, one in idle if one.id not in self._resident] if self._resident else idle
