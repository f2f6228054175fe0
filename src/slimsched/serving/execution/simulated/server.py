"""A simulated server: connects the real local scheduler to a simulated device."""

from collections.abc import Sequence
from typing import Protocol, assert_never

from slimsched.core.clock import Timeline, Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.serving.domain.cluster import ServerSnapshot
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import ALONE, NoiseSource, Profile, ServiceCost
from slimsched.serving.domain.request import Block, DropReason, RequestsCancelled
from slimsched.serving.execution.simulated.device import SimulatedDevice
from slimsched.serving.execution.simulated.said import said_about
from slimsched.serving.gateway.messages import SegmentFinished
from slimsched.serving.scheduler.messages import (
    BatchFinished,
    BlockArrived,
    Command,
    DropBlock,
    Event,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    RunBatch,
    Started,
    TelemetrySampled,
    UnloadInstance,
)
from slimsched.serving.scheduler.scheduler import GreedyScheduler, SchedulerOptions, resident_places

UNLOAD_S = 0.001


class Upstream(Protocol):
    """The cluster that a server reports to."""

    def segment_finished(self, event: SegmentFinished) -> None:
        """Report a finished batch."""
        ...

    def block_dropped(self, server: int, block: Block, reason: DropReason) -> None:
        """Report a dropped block."""
        ...


class SimulatedServer:
    """Gives events to a GreedyScheduler and turns its commands into future events.

    A server that dies is not told. The cluster stops using it, and later events from its device are ignored
    because `alive` is False.
    """

    def __init__(
        self,
        *,
        index: int,
        name: str,
        profile: Profile,
        models: Sequence[ServedModel],
        options: SchedulerOptions,
        timeline: Timeline,
        upstream: Upstream,
        observers: Sequence[Observer],
        cost: ServiceCost = ALONE,
        noise: NoiseSource | None = None,
    ) -> None:
        self.index = index
        self.name = name
        self.alive = True
        self.scheduler = GreedyScheduler(options, profile, models)
        self.device = SimulatedDevice(profile, cost, noise)
        self._timeline = timeline
        self._upstream = upstream
        self._observers = observers
        self._is_warm = False
        self._arrived: dict[int, tuple[float, int]] = {}  # by block: arrival time, examples that have not run

    def start(self, *, warm: bool = False) -> None:
        """Load the resident instances; a warm server has them loaded from the start."""
        self._is_warm = warm
        self._handle(Started())
        self._is_warm = False

    def residents_load_s(self) -> float:
        """Return how long it takes to load all resident instances at once."""
        load_s = self.device.profile.load_s
        places = resident_places(self.scheduler.options.resident, self.scheduler.models.values())
        return max([load_s[place] for place in places], default=0.0)

    def receive(self, block: Block) -> None:
        """Take in a block whose inputs have arrived."""
        self._arrived[block.id] = self._timeline.now_s, block.examples
        self._handle(BlockArrived(block=block))

    def recall(self, requests: tuple[int, ...]) -> None:
        """Cancel these requests, unless they have begun."""
        self._happen(RequestsCancelled(requests=requests))

    def sample(self) -> ServerSnapshot:
        """Read the sensors, tell the scheduler, and return a snapshot for the gateway."""
        now_s = self._timeline.now_s
        utilization, power_w = self.device.sample(now_s)
        fleet = self.scheduler.fleet
        self._handle(
            TelemetrySampled(utilization=utilization, power_w=power_w, vram_bytes=fleet.memory_bytes)
        )
        return ServerSnapshot(
            taken_s=now_s,
            utilization=utilization,
            power_w=power_w,
            vram_bytes=fleet.memory_bytes,
            queued=self.scheduler.queued_by_segment(),
            instances=len(fleet),
            power_source=self.device.profile.source.partition(":")[0],
            utilization_source="simulated",
            memory_source="simulated: sum of profiles",
            waiting={str(key): why for key, why in self.scheduler.explain().items()},
            refused=dict(self.scheduler.room.refused),
        )

    def slow(self, factor: float) -> None:
        """Change the device's speed."""
        self.device.slow(factor, self._timeline.now_s)
        self._expect_finish()

    def _handle(self, event: Event) -> None:
        """Give the scheduler one event, show observers what it decided, then carry that out."""
        now_s = self._timeline.now_s
        commands = self.scheduler.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, self.name, event, commands)
        if not commands:
            return
        started = False
        for command in commands:
            started |= self._carry_out(command, now_s)
        if started:
            self._expect_finish()

    def _carry_out(self, command: Command, now_s: float) -> bool:
        """Carry out a command; return True if the device has new work."""
        match command:
            case RunBatch(batch=batch):
                self.device.start(batch, now_s)
                return True
            case LoadInstance(instance=instance):
                load_s = self.device.profile.load_s[instance.place] * self.device.slowdown
                self._later(now_s + (0.0 if self._is_warm else load_s), InstanceLoaded(instance=instance.id))
            case UnloadInstance(instance=instance_id):
                self._later(now_s + UNLOAD_S, InstanceUnloaded(instance=instance_id))
            case DropBlock(block=block, reason=reason):
                self._waited_s((block,), now_s)
                self._upstream.block_dropped(self.index, block, reason)
            case WakeAt(at_s=at_s):
                self._later(at_s, Wake())
            case _:
                assert_never(command)
        return False

    def _later(self, at_s: float, event: Event) -> None:
        self._timeline.at(at_s, self._happen, event)

    def _happen(self, event: Event) -> None:
        if self.alive:
            self._handle(event)

    def _expect_finish(self) -> None:
        """Schedule the device's next finish; a later change of the device cancels it."""
        at_s = self.device.next_finish_s()
        if at_s is not None:
            self._timeline.at(at_s, self._finish, self.device.version)

    def _finish(self, version: int) -> None:
        """Finish a batch: let the scheduler begin the next one, then report."""
        if not self.alive or version != self.device.version:
            return
        now_s = self._timeline.now_s
        batch, busy_s, energy_j = self.device.finish(now_s)
        before, key = self.device.version, batch.key
        self._handle(BatchFinished(instance=batch.instance, busy_s=busy_s, energy_j=energy_j))
        finished = SegmentFinished(
            server=self.index,
            choice=key.choice,
            blocks=batch.blocks,
            ahead=key.ahead,
            size=batch.size,
            finished_s=now_s,
            busy_s=busy_s,
            energy_j=energy_j,
            queue_s=self._waited_s(batch.blocks, now_s - busy_s),
            **said_about(batch, self.scheduler.models[key.model]),
        )
        self._upstream.segment_finished(finished)
        if self.device.version == before:
            self._expect_finish()

    def _waited_s(self, blocks: tuple[Block, ...], until_s: float) -> tuple[float, ...]:
        """Return how long each block (or part of it) waited here before it ran."""
        arrived, waited_s = self._arrived, []
        for block in blocks:
            arrived_s, left = arrived.pop(block.id)
            if left > block.examples:
                arrived[block.id] = arrived_s, left - block.examples
            waited_s.append(until_s - arrived_s)
        return tuple(waited_s)
