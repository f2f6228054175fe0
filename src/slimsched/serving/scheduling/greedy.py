"""The greedy local scheduler: Algorithm 1 of the paper as a pure state machine.

One event and the time go in, commands come out. After each event the scheduler does what the paper's loop
does: serve the head of the queue while a free instance fits (lines 2-10), load an instance where none fits
(lines 13-20), and unload instances that have been idle for t_idle (lines 21-25). A head that cannot be served
goes back to the front. In plain FIFO it holds up everything behind it, as line 9 says.

The paper lists the trigger Q_th and the cap N_new as options, but Algorithm 1 does not use them. Here, a key
that no loaded or loading instance fits gets one instance at once. A key whose instances are all busy gets up
to N_new more when at least Q_th of its requests wait.
"""

from collections.abc import Callable, Collection, Sequence
from typing import assert_never

from slimsched.kernel.errors import ConfigError, SlimError
from slimsched.kernel.wake import Wake, WakeAt
from slimsched.serving.domain.batch import Batch
from slimsched.serving.domain.block import Block, block_of
from slimsched.serving.domain.cancellation import RequestsCancelled
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.instance import Instance, InstanceState
from slimsched.serving.domain.key import Key, onward
from slimsched.serving.domain.model_change import ModelEntry, ModelsChanged
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.scheduling.commands import Command, DropBlock, LoadInstance, RunBatch, UnloadInstance
from slimsched.serving.scheduling.events import (
    BatchFinished,
    BlockArrived,
    Event,
    InstanceLoaded,
    InstanceUnloaded,
    Started,
    TelemetrySampled,
)
from slimsched.serving.scheduling.fleet import Fleet
from slimsched.serving.scheduling.options import SchedulerOptions
from slimsched.serving.scheduling.queue import KeyQueue
from slimsched.serving.scheduling.residents import resident_places
from slimsched.serving.scheduling.room import Room
from slimsched.serving.scheduling.slowdown import Slowdown

Finder = Callable[[ModelEntry], tuple[ServedModel, Profile]]
"""Finds a model that is added while the server runs, and what it costs on this device."""
STARVED_S = 0.25
"""How long a busy device may refuse to load the first instance for a key, in deadline order."""


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
        self.fleet = Fleet(models)
        self._find = find
        self.queue = KeyQueue(by_deadline=options.order == "deadline", by_priority=options.priorities)
        self._waiting: dict[Key, tuple[str, tuple[object, ...]]] = {}
        self.profile = profile
        self.room = Room(options)
        self._running: dict[int, Batch] = {}
        self._slowdown = Slowdown()
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
                self._slowdown.note(busy_s, self.profile.latency_s(batch.key, batch.size))
                for one in (instance, *batch.also):
                    self.fleet.step(one, "finished", now_s)
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
                self.fleet.step(instance, "loaded", now_s)
            case InstanceUnloaded(instance=instance):
                self.fleet.step(instance, "unloaded", now_s)
            case TelemetrySampled():
                self.room.note(event, self.fleet)
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
            instance = self.fleet.free_best_fit(key)
            waits = instance is not None and self._waits_for_others(key)
            if instance is not None and not waits:
                commands.append(self._run(key, instance, now_s))
                continue
            if not waits:
                commands += self._scale_up(key, now_s)
            if self.options.order == "fifo" or self._starves(key, now_s):
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
            self.fleet.free_best_fit(leg) is None and self.fleet.fitting(leg)[0] for leg in key.legs[1:]
        )

    def _starves(self, key: Key, now_s: float) -> bool:
        """Whether a key that needs an instance has been refused one for too long because the device is busy.

        Then others wait until the device is idle enough to load it; else a rare key might never run.
        """
        since_s = self._refused_s.get(key)
        return since_s is not None and now_s - since_s >= STARVED_S

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
        elif self.options.merge_upward and size < limit and self._is_free(key):
            size += self._merge(key, blocks, limit - size)
        if (
            not also
            and self.options.wider_instance == "full"
            and instance.choice != key.choice
            and self._is_free(key)
        ):
            key = key.at(instance.choice)
        self._next_batch += 1
        number, ran = self._next_batch, tuple(blocks)
        batch = Batch(id=number, key=key, instance=instance.id, blocks=ran, size=size, also=tuple(also))
        self.fleet.step(instance.id, "run", now_s)
        self._refused_s.pop(asked, None)
        self._running[instance.id] = batch
        return RunBatch(batch=batch, why="full" if size == limit else "all that waited")

    def _is_free(self, key: Key) -> bool:
        """Whether requests of a key may run at another choice: not where plans leave combinations out."""
        return self.models[key.model].tree.is_free

    def _limit(self, key: Key) -> int:
        """Return B_max, or the largest batch that runs within `batch_limit_s`, rounded to a multiple of 8.

        Kernels run faster on multiples of 8, and calls with several examples are split less often.
        """
        limit, longest_s = self.options.batch_limit, self.options.batch_limit_s
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
            instance = self.fleet.free_best_fit(leg)
            if instance is None:
                break
            also.append(self.fleet.step(instance.id, "run", now_s).id)
        return onward(first, key.ahead[: len(also)]), also

    def _merge(self, key: Key, blocks: list[Block], room: int) -> int:
        """Fill the room that is left with narrower requests whose key is otherwise the same."""
        merged = 0
        for choice in reversed(range(key.choice)):
            narrower = key.at(choice)
            if merged < room and self.queue.size(narrower):
                riders = self.queue.pop(narrower, room - merged)
                blocks += riders
                merged += sum(block.examples for block in riders)
        return merged

    def _took_s(self, key: Key, size: int) -> float:
        """Time that a batch will probably take: by profile, corrected by what batches took lately."""
        return self._slowdown.value * self.profile.latency_s(key, size)

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
        busy, loading = self.fleet.fitting(key)
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
            refusal = self.room.refusal(self.fleet, memory)
            if refusal is not None:
                self._waiting[key] = refusal.reason, refusal.values
                if refusal.cause == "memory":
                    return commands or self._reclaim(now_s)
                if not busy:
                    self._refused_s.setdefault(key, now_s)
                return commands
            commands.append(LoadInstance(instance=self.fleet.add(key.place, memory, now_s)))
            self._waiting[key] = ("loading an instance for {}", (key,))
            self._refused_s.pop(key, None)
        return commands

    def is_warm(self, model: int) -> bool:
        """Whether nothing of a model is being loaded."""
        return all(state is not InstanceState.LOADING for _, state in self.fleet.of_model(model))

    def _begin_with(self, entries: Sequence[ModelEntry]) -> None:
        """Serve these models instead of those that the cluster began with."""
        found = [self._found(entry) for entry in entries]
        self.models = {model.number: model for model, _ in found}
        self.fleet = Fleet([model for model, _ in found])
        self.profile = Profile.joined([part for _, part in found])

    def _change_models(
        self, added: Sequence[ModelEntry], retired: Sequence[int], now_s: float
    ) -> list[Command]:
        """Load what shall stay loaded of new models; let go of what is idle of those that went."""
        for model, part in [self._found(entry) for entry in added]:
            self.models[model.number] = model
            self.fleet.know(model)
            self.profile = Profile.joined([*self.profile.parts, part])
        commands = self._load_residents([entry.number for entry in added], now_s)
        for number in retired:
            for instance, state in self.fleet.of_model(number):
                self._resident.discard(instance.id)
                if state is InstanceState.FREE:
                    self.fleet.step(instance.id, "unload", now_s)
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
            if self.fleet.memory_bytes + memory <= self.options.vram_cap_bytes:
                instance = self.fleet.add(place, memory, now_s)
                self._resident.add(instance.id)
                commands.append(LoadInstance(instance=instance))
        return commands

    def _reclaim(self, now_s: float) -> list[Command]:
        """Unload the longest idle instance to make room for the head."""
        idle = self._removable()
        if not self.options.reclaim or not idle or self.fleet.is_unloading():
            return []
        instance = idle[0][1]
        self.fleet.step(instance.id, "unload", now_s)
        return [UnloadInstance(instance=instance.id)]

    def _unload_idle(self, now_s: float) -> list[Command]:
        """Lines 21-25: unload idle instances, then ask to be woken when the next one may be due."""
        commands: list[Command] = []
        t_idle = self.options.idle_unload_s
        for last_used_s, instance in self._removable():
            if now_s - last_used_s < t_idle:
                break
            self.fleet.step(instance.id, "unload", now_s)
            commands.append(UnloadInstance(instance=instance.id))
        if len(self.fleet) > len(self._resident):
            idle = self._removable()
            self._wake_s = max(now_s + 1e-3, (idle[0][0] if idle else now_s) + t_idle)
            commands.append(WakeAt(at_s=self._wake_s))
        return commands

    def _removable(self) -> list[tuple[float, Instance]]:
        """List idle instances that need not stay loaded, longest idle first."""
        idle = self.fleet.idle()
        return [(at, one) for at, one in idle if one.id not in self._resident] if self._resident else idle
