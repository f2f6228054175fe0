"""One live server: the same scheduler as in simulation, with an executor that runs its commands.

A block arrives, its inputs are fetched, the scheduler is told; its commands run batches in lanes. What has
run is reported to the gateway, and activations wait here for the next segment.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol, assert_never

import torch

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.log import Observer
from slimsched.models.elastic import AS_IS, DTYPES, ModelError, RunOptions, Tensors, read_run_options
from slimsched.serving.domain.cluster import Instance, ServerSnapshot, life_name
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Batch, Block, DropReason, Key, RequestsCancelled, ids_of
from slimsched.serving.gateway.messages import (
    BlockDropped,
    Forget,
    InputLost,
    RecallRequests,
    SegmentFinished,
    TelemetryReceived,
)
from slimsched.serving.live.batches import ActivationStore, BatchRun, Lanes, OverlappingLanes
from slimsched.serving.live.executor import CpuExecutor, Executor, HostedModel, OverlappingExecutor
from slimsched.serving.live.memory import ArenaReader
from slimsched.serving.live.peers import UnixPeers
from slimsched.serving.live.sensors import DeviceReading, DeviceSensor, NoSensor, PowerMeter, Reading
from slimsched.serving.live.wire import (
    BatchDone,
    Drain,
    HostModel,
    InputPiece,
    ModelHosted,
    Ping,
    Pong,
    ServerSpec,
    TakeBlock,
    ToGateway,
    ToServer,
    UnhostModel,
)
from slimsched.serving.scenario.files import load_elastic, read_model
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
from slimsched.serving.scheduler.scheduler import GreedyScheduler

# -- Warm-up: runs everything once before a server reports ready, so that no request pays for it.


def warm_up(executor: Executor, models: Sequence[ServedModel], batch: int) -> None:
    """Run the narrowest, a middle and the widest plan with one example and with a full batch.

    Instances loaded for this are unloaded afterwards.
    """
    for model in models:
        for plan in sorted({model.spec.narrowest, model.tree.middle, model.spec.widest}):
            legs = model.legs(plan)
            slots = [
                Instance(id=-1 - n, segment=leg.segment, choice=leg.choice, memory_bytes=0, model=leg.model)
                for n, leg in enumerate(legs)
            ]
            for slot in slots:
                executor.load(slot)
            for count in (1, batch):
                rows = executor.example(legs[0], count)
                for leg in legs:
                    rows = executor.run(leg, rows)
            for slot in slots:
                executor.unload(slot.id)


def touch(executor: Executor, models: Sequence[ServedModel], loaded: Sequence[Instance]) -> None:
    """Run one example through every key of the loaded instances, because segments are made on first use.

    Where the device works in parallel with the host, whole plans are made ready too.
    """
    for model in models:
        for key in model.keys.values():
            if any(_fits(one, key.place, nested=model.spec.nested) for one in loaded):
                executor.run(key, executor.example(key, 1))
    if isinstance(executor, OverlappingExecutor):
        executor.prepare_plans()


def _fits(instance: Instance, place: tuple[int, int, int], *, nested: bool) -> bool:
    model, segment, choice = place
    same = (instance.model, instance.segment) == (model, segment)
    return same and (instance.choice == choice or (nested and instance.choice > choice))


# -- The interface for fetching activations from other servers.


class Peers(Protocol):
    """Moves activations from server to server, never through the gateway."""

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations from the server at `peer`; None if it does not have all of them."""
        ...


# -- Chooses executor and peers by the kind of device that a server uses.

SWITCH_S = 0.0005
"""Python's thread switch interval for CUDA servers: a batch is shorter than the default of 5 ms."""


def read_models(spec: ServerSpec) -> tuple[list[ServedModel], Profile]:
    """Return the models of a server in order, and one profile of them all."""
    numbers = spec.numbers or range(len(spec.models))
    models = [
        read_model(source, rated=False).numbered(number)
        for number, source in zip(numbers, spec.models, strict=True)
    ]
    parts = [record.profile(model) for record, model in zip(spec.profiles, models, strict=True)]
    return models, Profile.joined(parts)


def host_models(models: Sequence[ServedModel], device: torch.device) -> list[HostedModel]:
    """Load the code and weights of models onto a device."""
    return [HostedModel(model, load_elastic(model), device, _options(model, device)) for model in models]


def _options(model: ServedModel, device: torch.device) -> RunOptions:
    return read_run_options(Path(model.folder), device.type) if model.folder else AS_IS


def make_executor(spec: ServerSpec, models: Sequence[ServedModel]) -> Executor:
    """Make the executor of this server; it sees only the GPU it may use."""
    if spec.host.kind == "cpu":
        hosted = host_models(models, torch.device("cpu"))
        return CpuExecutor(hosted, threads=spec.host.threads, speed=spec.host.speed)
    from slimsched.serving.live.cuda import CudaExecutor, cuda_device

    sys.setswitchinterval(SWITCH_S)
    return CudaExecutor(host_models(models, cuda_device()), batch_limit=spec.scheduler.batch_limit)


def make_arena(spec: ServerSpec) -> ArenaReader | None:
    """Open the memory that holds large inputs; a GPU copies straight out of it."""
    if not spec.arena:
        return None
    if spec.host.kind == "cpu":
        return ArenaReader(Path(spec.arena))
    from slimsched.serving.live.cuda import PinnedArena

    return PinnedArena(Path(spec.arena))


def make_peers(spec: ServerSpec) -> UnixPeers:
    """Use shared memory between CPU servers, CUDA handles between GPU servers."""
    if spec.host.kind == "cpu":
        return UnixPeers(spec.shared_prefix, spec.secret)
    from slimsched.serving.live.cuda import CudaPeers

    return CudaPeers(spec.shared_prefix, spec.secret, torch.device("cuda", 0))


LOOK_S = 0.005


class LiveServer:
    """Passes events to a GreedyScheduler and turns its commands into work on a device."""

    def __init__(
        self,
        spec: ServerSpec,
        models: Sequence[ServedModel],
        profile: Profile,
        executor: Executor,
        meter: PowerMeter,
        peers: Peers,
        tell: Callable[[ToGateway], None],
        observers: Sequence[Observer] = (),
        sensor: DeviceSensor | None = None,
    ) -> None:
        self._known = {model.number: (model, profile.part(model.number)) for model in models}
        self._retired: set[int] = set()
        self._hosted = set(self._known)  # models whose code and weights are here
        self.scheduler = GreedyScheduler(
            spec.scheduler, profile, models, find=lambda entry: self._known[entry.number]
        )
        self.drained = asyncio.Event()
        self._machine = life_name(spec.name, spec.life)
        self._spec, self._executor, self._meter = spec, executor, meter
        self._sensor = sensor or NoSensor()
        self._peers, self._tell = peers, tell
        self._observers = observers
        self._loop = asyncio.get_running_loop()
        overlaps = isinstance(executor, OverlappingExecutor)
        self._lanes = (OverlappingLanes if overlaps else Lanes)(executor.lanes, self._failed)
        self._store = ActivationStore()
        self._arena = make_arena(spec)
        self._arrived_s: dict[int, float] = {}  # by example, on the host's clock
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy_s = 0.0  # lane seconds since the last sample
        self._active_j = 0.0  # by profile, since the start
        self._correction = 1.0  # measured over modelled active energy
        self._last = meter.read(0.0)
        self._last_active_j = 0.0

    @property
    def now_s(self) -> float:
        """Seconds on the clock that all servers and the gateway share."""
        return monotonic() - self._spec.clock_zero_s

    async def start(self) -> None:
        """Load what shall always be loaded, and return when it is."""
        entries = zip(self._spec.numbers, self._spec.models, strict=False)  # no numbers: as at the start
        self.handle(Started(models=tuple(ModelEntry(number=n, source=source) for n, source in entries)))
        while self._lanes.under_way:
            await asyncio.sleep(0.001)

    def receive(self, message: ToServer) -> None:
        """Handle a message from the gateway."""
        match message:
            case TakeBlock():
                self._take(message)
            case Forget(requests=requests):
                self._store.forget(requests)
            case RecallRequests(requests=requests):
                self.handle(RequestsCancelled(requests=requests))
            case Ping():
                self._tell(Pong())
            case HostModel():
                self._spawn(self._host(message))
            case UnhostModel(number=number):
                self._unhost(number)
            case Drain():
                self._draining = True
                self._check_drained()
            case _:
                assert_never(message)

    @property
    def models(self) -> list[int]:
        """The numbers of the models that are served here."""
        return [number for number in self.scheduler.models if number not in self._retired]

    async def _host(self, message: HostModel) -> None:
        """Load a model beside the others, warm it up, and say so; or say what is wrong with it."""
        entry, error = message.entry, ""
        try:
            served, part = await asyncio.to_thread(self._prepare, message)
            if entry.number in self._retired:
                raise ModelError("nobody wants it any more")
            self._known[entry.number] = served, part
            self.handle(ModelsChanged(added=(entry,)))
            while not self.scheduler.is_warm(entry.number):
                await asyncio.sleep(LOOK_S)
            loaded = [instance for instance, _ in self.scheduler.fleet.of_model(entry.number)]
            await asyncio.to_thread(touch, self._executor, [served], loaded)
        except Exception as problem:
            error = str(problem) or type(problem).__name__
            self._unhost(entry.number)
        self._tell(ModelHosted(server=self._spec.index, number=entry.number, error=error))

    def _prepare(self, message: HostModel) -> tuple[ServedModel, Profile]:
        """Read a model, run every part of it once and warm it up; in a thread of its own."""
        entry = message.entry
        try:
            served = read_model(entry.source, rated=False).numbered(entry.number, weight=entry.weight)
            self._hosted.add(entry.number)
            (hosted,) = host_models([served], self._executor.device)
            self._executor.host(hosted)
            warm_up(self._executor, [served], self._spec.scheduler.batch_limit)
            return served, message.profile.profile(served)
        except (SystemExit, KeyboardInterrupt) as error:
            raise ModelError(f"the code of {entry.source} tried to end the server: {error!r}") from None

    def _unhost(self, number: int) -> None:
        """Unload what is idle of a model; what is still busy follows."""
        is_new = number not in self._retired
        self._retired.add(number)
        if is_new and number in self.scheduler.models:
            self.handle(ModelsChanged(retired=(number,)))
        self._release()

    def _release(self) -> None:
        """Let the code and weights go of models of which nothing is loaded any more."""
        for number in self._retired & self._hosted:
            if number not in self.scheduler.models or not self.scheduler.fleet.of_model(number):
                self._hosted.discard(number)
                self._executor.release(number)

    def surrender(self, requests: Sequence[int]) -> Tensors | None:
        """Hand activations over to another server; None unless all of them are here."""
        return self._store.take(requests) if self._store.has(requests) else None

    def kept(self) -> list[int]:
        """List the requests whose activations wait here to be fetched."""
        return [request for request in self._store.requests() if request not in self._arrived_s]

    def under_way(self) -> list[int]:
        """List the requests that are queued or running here."""
        return list(self._arrived_s)

    async def sample_forever(self) -> None:
        """Read the sensors periodically, and tell the scheduler and the gateway."""
        period_s = self._spec.telemetry_period_s
        while True:
            began_s = monotonic()
            await asyncio.sleep(period_s)
            active_j = self._active_j
            reading, device = await asyncio.to_thread(self._read_sensors, active_j)
            passed_s = max(1e-6, reading.at_s - self._last.at_s)
            power_w = (reading.energy_j - self._last.energy_j) / passed_s
            self._attribute(
                active_j, reading.energy_j - self._last.energy_j - self.scheduler.profile.idle_w * passed_s
            )
            self._last = reading
            busy = min(1.0, self._busy_s / ((monotonic() - began_s) * self._executor.lanes))
            self._busy_s = 0.0
            sample = device.sampled(busy, power_w, self.scheduler.fleet.memory_bytes)
            self.handle(sample)
            self._tell(TelemetryReceived(server=self._spec.index, snapshot=self._snapshot(sample)))

    def _read_sensors(self, active_j: float) -> tuple[Reading, DeviceReading]:
        """Read all sensors; they may take some milliseconds, so this runs in a thread."""
        return self._meter.read(active_j), self._sensor.read()

    def _snapshot(self, sample: TelemetrySampled) -> ServerSnapshot:
        return ServerSnapshot(
            taken_s=self.now_s,
            utilization=sample.utilization,
            power_w=sample.power_w,
            vram_bytes=sample.vram_bytes,
            queued=self.scheduler.queued_by_segment(),
            instances=len(self.scheduler.fleet),
            power_source=self._meter.source,
            utilization_source=self._sensor.utilization_source,
            memory_source=self._sensor.memory_source,
            waiting={self._key_text(key): why for key, why in self.scheduler.explain().items()},
            refused=dict(self.scheduler.room.refused),
        )

    def handle(self, event: Event) -> None:
        """Pass one event to the scheduler, show observers its decisions, then carry them out."""
        now_s = self.now_s
        commands = self.scheduler.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, self._machine, event, commands)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case RunBatch(batch=batch):
                self._lanes.run_batch(self._executor, self._store, batch, partial(self._ran, batch))
            case LoadInstance(instance=instance):
                self._lanes.run(partial(self._executor.load, instance), partial(self._loaded, instance.id))
            case UnloadInstance(instance=instance_id):
                self._lanes.run(
                    partial(self._executor.unload, instance_id), partial(self._unloaded, instance_id)
                )
            case DropBlock(block=block, reason=reason):
                self._store.forget(ids_of(block.requests))
                self._waited_s(block, 0.0)
                self._tell(BlockDropped(server=self._spec.index, block=block, reason=reason))
            case WakeAt(at_s=at_s):
                self._loop.call_later(max(0.0, at_s - self.now_s), self.handle, Wake())
            case _:
                assert_never(command)

    def _key_text(self, key: Key) -> str:
        return self.scheduler.models[key.model].key_text(key)

    def _take(self, message: TakeBlock) -> None:
        """Store a block's inputs, or fetch its activations, then pass the block to the scheduler."""
        block = message.block
        ids = ids_of(block.requests)
        if message.peer:
            self._spawn(self._fetch(block, ids, message.peer))
            return
        if message.inputs:
            self._store.put(ids, self._tensors(block, len(ids), [bytearray(raw) for raw in message.inputs]))
        at = 0
        for piece in message.pieces:
            self._store.put(ids[at : at + piece.rows], self._read(block, piece))
            at += piece.rows
        self._arrive(block, ids)

    def _tensors(self, block: Block, rows: int, raws: Sequence[bytearray | memoryview]) -> Tensors:
        specs = self.scheduler.models[block.key.model].spec.inputs
        return tuple(
            torch.frombuffer(raw, dtype=DTYPES[one.datatype]).view(rows, *one.shape)
            for raw, one in zip(raws, specs, strict=True)
        )

    def _read(self, block: Block, piece: InputPiece) -> Tensors:
        """Read inputs where the gateway put them; a device copies them itself, a CPU works on a copy."""
        assert self._arena is not None
        specs = self.scheduler.models[block.key.model].spec.inputs
        raws = [
            self._arena.view(offset, piece.rows * one.row_bytes)
            for offset, one in zip(piece.offsets, specs, strict=True)
        ]
        if self._executor.device.type == "cpu":
            return self._tensors(block, piece.rows, [bytearray(raw) for raw in raws])
        return self._tensors(block, piece.rows, raws)

    def _arrive(self, block: Block, ids: list[int]) -> None:
        if block.keep and block.key.segment and not self._store.has(ids):
            self._store.revive(ids, block.key.segment)
        if not self._store.has(ids):
            self._tell(InputLost(server=self._spec.index, block=block))
            return
        self._arrived_s.update(dict.fromkeys(ids, monotonic()))
        self.handle(BlockArrived(block=block))

    async def _fetch(self, block: Block, ids: list[int], peer: str) -> None:
        rows = await self._peers.fetch(peer, ids)
        if rows is not None:
            self._store.put(ids, rows)
        self._arrive(block, ids)

    def _ran(self, batch: Batch, run: BatchRun) -> None:
        """Handle a finished batch: let the lane run the next one, then report."""
        self._busy_s += run.busy_s
        energy_j = self.scheduler.profile.energy_j(batch.key, batch.size)
        self._active_j += energy_j
        energy_j *= self._correction
        self.handle(BatchFinished(instance=batch.instance, busy_s=run.busy_s, energy_j=energy_j))
        server, why = self._spec.index, DropReason.EXECUTION_FAILED
        for block, detail in run.failed:
            self._waited_s(block, run.began_s)
            self._tell(BlockDropped(server=server, block=block, reason=why, detail=detail))
        if run.done:
            finished = SegmentFinished(
                server=server,
                choice=batch.key.choice,
                blocks=tuple(run.done),
                ahead=batch.key.ahead,
                size=batch.size,
                finished_s=self.now_s,
                busy_s=run.busy_s,
                energy_j=energy_j,
                queue_s=tuple([self._waited_s(block, run.began_s) for block in run.done]),
                legs_s=run.legs_s,
                confidence=run.confidence,
                top=run.top,
            )
            self._tell(BatchDone(finished=finished, outputs=run.outputs))
        self._check_drained()

    def _waited_s(self, block: Block, until_s: float) -> float:
        """Return how long a block waited before it ran; call this once per block."""
        arrived_s = [self._arrived_s.pop(number, until_s) for number in ids_of(block.requests)]
        return max(0.0, until_s - arrived_s[-1])

    def _loaded(self, instance: int, _: object) -> None:
        self.handle(InstanceLoaded(instance=instance))

    def _unloaded(self, instance: int, _: object) -> None:
        self.handle(InstanceUnloaded(instance=instance))
        if self._retired:
            self._release()
        self._check_drained()

    def _failed(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": f"{self._spec.name} failed", "exception": error})

    def _attribute(self, active_j: float, measured_j: float) -> None:
        """Update the ratio of measured to profiled energy above idle."""
        modelled_j = active_j - self._last_active_j
        self._last_active_j = active_j
        if modelled_j > 0.0 and measured_j > 0.0:
            self._correction += 0.2 * (measured_j / modelled_j - self._correction)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._check_drained()
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed(error)

    def _check_drained(self) -> None:
        idle = not self._lanes.under_way and not self._tasks
        if self._draining and idle and not self.scheduler.is_busy:
            self.drained.set()
