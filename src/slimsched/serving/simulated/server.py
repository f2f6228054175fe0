"""A simulated server: connects the real local scheduler to a simulated device.

The device runs several batches at once by its profile, each slowed by the others. What a model says of its
answers is looked up by example, as it was measured.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import assert_never

from slimsched.core.clock import Timeline, Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.serving.domain.cluster import ServerSnapshot
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import ALONE, NoiseSource, Profile, ServiceCost
from slimsched.serving.domain.request import Batch, Block, RequestsCancelled
from slimsched.serving.gateway.messages import BlockDropped, SegmentFinished
from slimsched.serving.scheduler.scheduler import (
    BatchFinished,
    BlockArrived,
    Command,
    DropBlock,
    Event,
    GreedyScheduler,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    RunBatch,
    SchedulerOptions,
    Started,
    TelemetrySampled,
    UnloadInstance,
    resident_places,
)


class _Work:
    """A batch on the device, and how much of it is left."""

    __slots__ = ("batch", "energy_j", "latencies_s", "left", "rate_per_s", "started_s")

    def __init__(
        self, batch: Batch, profile: Profile, cost: ServiceCost, noise: NoiseSource | None, now_s: float
    ) -> None:
        self.batch = batch
        self.latencies_s = profile.latencies_s(batch.key, batch.size)
        if cost is not ALONE:
            self.latencies_s = [cost.latency_s(alone_s, now_s) for alone_s in self.latencies_s]
        if noise is not None:
            factor = noise.factor(now_s)
            self.latencies_s = [factor * usual_s for usual_s in self.latencies_s]
        self.energy_j = profile.energy_j(batch.key, batch.size)
        self.left = 1.0
        self.rate_per_s = 0.0
        self.started_s = now_s


class SimulatedDevice:
    """Processor sharing by profile: while c batches run, each proceeds at 1 / latency(key, size, c).

    At most as many batches run at once as were profiled together; others wait in order of arrival.
    """

    def __init__(self, profile: Profile, cost: ServiceCost = ALONE, noise: NoiseSource | None = None) -> None:
        self.profile = profile
        self.slowdown = 1.0
        self._cost, self._noise = cost, noise
        self.version = 0  # changes whenever the time of the next finish may change
        self._running: list[_Work] = []
        self._waiting: deque[_Work] = deque()
        self._first: _Work | None = None
        self._first_s = inf
        self._since_s = 0.0
        self._active_w = 0.0
        self._sampled_s = 0.0
        self._busy_s = 0.0
        self._active_j = 0.0

    def start(self, batch: Batch, now_s: float) -> None:
        """Start a batch next to those already running."""
        self._pass_time(now_s)
        work = _Work(batch, self.profile, self._cost, self._noise, now_s)
        if len(self._running) < self.profile.top_concurrency:
            self._running.append(work)
            self._share()
        else:
            self._waiting.append(work)

    def next_finish_s(self) -> float | None:
        """Return when the next batch will be done if nothing else starts; None if nothing runs."""
        return None if self._first is None else self._first_s

    def finish(self, now_s: float) -> tuple[Batch, float, float]:
        """Remove the finished batch; return it, the time it took, and the energy it drew above idle."""
        done = self._first
        assert done is not None
        self._pass_time(now_s)
        self._running.remove(done)
        if self._waiting:
            self._waiting[0].started_s = now_s
            self._running.append(self._waiting.popleft())
        self._share()
        return done.batch, now_s - done.started_s, done.energy_j

    def slow(self, factor: float, now_s: float) -> None:
        """From now on, let everything take `factor` times as long as the profile says."""
        self._pass_time(now_s)
        self.slowdown = factor
        self._share()

    def sample(self, now_s: float) -> tuple[float, float]:
        """Return utilization and mean power since the last sample."""
        self._pass_time(now_s)
        period_s = now_s - self._sampled_s
        if period_s <= 0.0:
            return 0.0, self.profile.idle_w
        reading = self._busy_s / period_s, self.profile.idle_w + self._active_j / period_s
        self._sampled_s, self._busy_s, self._active_j = now_s, 0.0, 0.0
        return reading

    def _pass_time(self, now_s: float) -> None:
        """Update the running batches to the current time."""
        passed_s = now_s - self._since_s
        self._since_s = now_s
        if passed_s > 0.0 and self._running:
            self._busy_s += passed_s
            self._active_j += passed_s * self._active_w
            for work in self._running:
                work.left -= passed_s * work.rate_per_s

    def _share(self) -> None:
        """Set the pace of all running batches, and find the one that will finish first."""
        self.version += 1
        self._first, least_s, active_w = None, inf, 0.0
        pace, column = 1.0 / self.slowdown, len(self._running) - 1
        for work in self._running:
            work.rate_per_s = rate = pace / work.latencies_s[column]
            active_w += work.energy_j * rate
            left_s = work.left / rate
            if left_s < least_s:
                self._first, least_s = work, left_s
        self._first_s = self._since_s + max(0.0, least_s)
        self._active_w = active_w


def confidence_of(batch: Batch, model: ServedModel) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return how sure the model is of each answer of a batch that completes plans which are judged.

    And the class: 0 for the widest plan's, 1 for another. It says nothing about unknown examples.
    """
    known, key = model.measured.confidences, batch.key
    if known is None or not batch.blocks[0].keep or not model.spec.ends(key.last_segment, key.choices[-1]):
        return (), ()
    confidence, top = [], []
    for block in batch.blocks:
        for request in block.requests:
            plan = model.tree.index[request.path + key.choices]
            if not 0 <= request.example < known.examples:
                return (), ()
            confidence.append(known.typical(plan, request.example))
            top.append(known.top(plan, request.example))
    return tuple(confidence), tuple(top)


UNLOAD_S = 0.001


class SimulatedServer:
    """Gives events to a GreedyScheduler and turns its commands into future events.

    It reports finished batches and dropped blocks. A server that dies is not told. The cluster stops using
    it, and later events from its device are ignored because `alive` is False.
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
        report: Callable[[SegmentFinished | BlockDropped], None],
        observers: Sequence[Observer],
        cost: ServiceCost = ALONE,
        noise: NoiseSource | None = None,
    ) -> None:
        self.index = index
        self.name = name
        self.alive = True
        self.scheduler = GreedyScheduler(options, profile, models)
        self.device = SimulatedDevice(profile, cost, noise)
        self._timeline, self._report, self._observers = timeline, report, observers
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
        fleet = self.scheduler.instances
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
            refused=dict(self.scheduler.load_gate.refused),
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
                self._report(BlockDropped(server=self.index, block=block, reason=reason))
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
        confidence, top = confidence_of(batch, self.scheduler.models[key.model])
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
            confidence=confidence,
            top=top,
        )
        self._report(finished)
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
