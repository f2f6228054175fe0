"""One live server: the same scheduler as in simulation, with an executor that runs its commands.

A block arrives, its inputs are fetched, the scheduler is told; its commands run batches in lanes. What has
run is reported to the gateway, and activations wait here for the next segment.
"""

import asyncio
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import assert_never

import msgspec
import torch

from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.core.log import LogWriter, Observer, log_path
from slimsched.core.statistics import Fading, follow
from slimsched.models.cache import cache_folder, write_kept
from slimsched.models.elastic import (
    AS_IS,
    DTYPES,
    PRECISIONS,
    ModelError,
    RunOptions,
    Tensors,
    read_run_options,
)
from slimsched.models.package import PROFILES, is_trained
from slimsched.serving.domain.cluster import Host, Instance, ServerSnapshot, life_name
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.profile import AT_START, SLOWED, Profile, ProfileRecord
from slimsched.serving.domain.request import Batch, Block, DropReason, Key, RequestsCancelled, ids_of
from slimsched.serving.gateway.messages import (
    BlockDropped,
    Forget,
    InputLost,
    RecallRequests,
    SegmentFinished,
    TelemetryReceived,
)
from slimsched.serving.live import wire
from slimsched.serving.live.batches import FAULTS, ActivationStore, BatchRun, Lanes, OverlappingLanes
from slimsched.serving.live.executor import CpuExecutor, Executor, HostedModel, fits
from slimsched.serving.live.memory import ArenaReader
from slimsched.serving.live.peers import PeerLinks, UnixPeers
from slimsched.serving.live.sensors import (
    DeviceSensor,
    PowerMeter,
    open_meter,
    open_sensor,
)
from slimsched.serving.scenario.files import kept_profile, load_elastic, read_model
from slimsched.serving.scheduler import scheduler

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
            if any(fits(one, key, nested=model.spec.nested) for one in loaded):
                executor.run(key, executor.example(key, 1))
    executor.prepare_plans()


# -- Chooses executor and peers by the kind of device that a server uses.

SWITCH_S = 0.0005
"""Python's thread switch interval for CUDA servers: a batch is shorter than the default of 5 ms."""


def read_models(spec: wire.ServerSpec) -> tuple[list[ServedModel], Profile]:
    """Return the models of a server in order, and one profile of them all."""
    numbers = spec.numbers or range(len(spec.models))
    models = [
        read_model(source, rated=False).numbered(number)
        for number, source in zip(numbers, spec.models, strict=True)
    ]
    parts = [record.profile(model) for record, model in zip(spec.profiles, models, strict=True)]
    return models, Profile.joined(parts)


def host_models(
    models: Sequence[ServedModel], device: torch.device, precision: str = "", profiles: Sequence[str] = ()
) -> list[HostedModel]:
    """Load the code and weights of models onto a device.

    With a precision, models run as they did when their profiles on the device were measured.
    """
    options = [own_options(model, device.type) for model in models]
    for at, (model, name) in enumerate(zip(models, profiles, strict=False) if precision else ()):
        if options[at] is None:
            kept = kept_profile(name.partition(SLOWED)[0], model)
            is_last = kept is not None and kept.device.get("channels_last") == "yes"
            options[at] = RunOptions(precision=PRECISIONS[precision], channels_last=is_last)
    return [
        HostedModel(model, load_elastic(model), device, chosen or AS_IS)
        for model, chosen in zip(models, options, strict=True)
    ]


def own_options(model: ServedModel, kind: str) -> RunOptions | None:
    """Return how a model wants to run on this kind of device; None if that is open."""
    options = read_run_options(Path(model.folder), kind) if model.folder else AS_IS
    is_open = options == AS_IS and model.folder and not is_trained(Path(model.folder))
    return None if is_open else options


def make_executor(spec: wire.ServerSpec, models: Sequence[ServedModel]) -> Executor:
    """Make the executor of this server; it sees only the GPU it may use."""
    names = [record.name for record in spec.profiles]
    if spec.host.kind == "cpu":
        hosted = host_models(models, torch.device("cpu"), spec.host.precision, names)
        return CpuExecutor(hosted, threads=spec.host.threads, speed=spec.host.speed)
    from slimsched.serving.live.cuda import CudaExecutor, cuda_device

    sys.setswitchinterval(SWITCH_S)
    hosted = host_models(models, cuda_device(), spec.host.precision, names)
    return CudaExecutor(hosted, batch_limit=spec.scheduler.batch_limit)


def make_links(start: wire.ServerStart) -> tuple[UnixPeers, ArenaReader | None]:
    """Open what processes share: activations of other servers, and the memory that holds large inputs.

    GPU servers hand over CUDA handles, and a GPU copies inputs straight out of that memory.
    """
    arena = Path(start.arena) if start.arena else None
    if start.spec.host.kind == "cpu":
        return UnixPeers(start.shared_prefix, start.secret), None if arena is None else ArenaReader(arena)
    from slimsched.serving.live.cuda import CudaPeers, PinnedArena

    peers = CudaPeers(start.shared_prefix, start.secret, torch.device("cuda", 0))
    return peers, None if arena is None else PinnedArena(arena)


# -- What batches really cost in service, for profiles that were measured in seconds when serving began.

LEAST_BATCHES = 20
"""So many batches of a key and a size must have run before the profile is changed."""

COST_SHARE = 0.05
"""The mean follows the last twenty batches."""

MOST_CHANGE = 2.0
"""One run changes a latency by at most this factor, up or down."""


class RealCosts:
    """How many times as long as by profile batches took that had the device to themselves."""

    def __init__(self) -> None:
        self._means: dict[tuple[Key, int], Fading] = {}
        self._counts: Counter[tuple[Key, int]] = Counter()
        self._ended_s = 0.0

    def note(self, batch: Batch, run: BatchRun, profile: Profile, *, is_last: bool) -> None:
        """Note a batch that has just ended; `is_last` if none runs now."""
        was_alone = is_last and run.began_s >= self._ended_s and not run.failed
        self._ended_s = monotonic()
        if not was_alone or not profile.source.startswith(AT_START):
            return
        legs, whole = batch.key.legs, run.busy_s / profile.latency_s(batch.key, batch.size)
        size = min(profile.batches, key=lambda one: max(one / batch.size, batch.size / one))
        if not size <= 2 * batch.size <= 4 * size:
            return  # it says little about any size of the profile
        for at, leg in enumerate(legs):
            alone_s = profile.latency_s(leg, batch.size)
            ratio = run.legs_s[at] / alone_s if len(run.legs_s) == len(legs) else whole
            self._means.setdefault((leg, size), Fading(share=COST_SHARE)).note(ratio)
            self._counts[leg, size] += 1

    def merged(self, model: ServedModel, profile: Profile, speed: float) -> ProfileRecord | None:
        """Return what the cache has with what was seen here; None if there is nothing to change."""
        kept = kept_profile(profile.name.partition(SLOWED)[0], model)
        often = [cell for cell, count in self._counts.items() if count >= LEAST_BATCHES]
        if kept is None or kept.batches != profile.batches or kept.concurrency != profile.concurrency:
            return None
        latency_s, steps = [[[*row] for row in rows] for rows in kept.latency_s], kept.steps
        for key, size in (cell for cell in often if cell[0].model == model.number):
            ratio, at = self._means[key, size].mean, kept.batches.index(size)
            ratio = speed * min(MOST_CHANGE, max(1 / MOST_CHANGE, ratio))
            for row, before in zip(
                latency_s[steps.index(key.step)], profile.latency_table_s[key], strict=True
            ):
                row[at] = ratio * before[at]
        return None if latency_s == kept.latency_s else msgspec.structs.replace(kept, latency_s=latency_s)


LOOK_S = 0.005


class LiveServer:
    """Passes events to a `GreedyScheduler` and turns its commands into work on a device.

    A block comes with its inputs, or they are read from the arena, or fetched from the server that ran the
    segment before. Once they are in the store, the scheduler hears `BlockArrived`. What it commands runs in
    lanes, which are threads beside the event loop: batches, loading and unloading of instances. When a lane
    is done, the scheduler hears of it first, so that the lane gets its next work, and then the gateway. The
    result of a segment stays in the store until the next one is run here, or another server fetches it.

    Every event passes through `handle`: scheduler, observers, commands, in that order. Everything happens in
    the event loop but what runs in lanes, reading sensors, and preparing another model.
    """

    def __init__(
        self,
        spec: wire.ServerSpec,
        models: Sequence[ServedModel],
        profile: Profile,
        executor: Executor,
        meter: PowerMeter,
        peers: PeerLinks,
        tell: Callable[[wire.ToGateway], None],
        *,
        clock_zero_s: float,
        life: int = 1,
        observers: Sequence[Observer] = (),
        sensor: DeviceSensor | None = None,
        arena: ArenaReader | None = None,
    ) -> None:
        """`tell` takes what goes to the gateway; the clock began at `clock_zero_s` of the host's."""
        self._known = {model.number: (model, profile.part(model.number)) for model in models}
        """All models that were ever served here, each with its profile on this device."""
        self._retired: set[int] = set()
        """Models that nobody asks for any more; what is loaded of them goes when it is idle."""
        self._hosted = set(self._known)
        """Models whose code and weights are in this process."""
        self.scheduler = scheduler.GreedyScheduler(
            spec.scheduler, profile, models, find=lambda entry: self._known[entry.number]
        )
        self.drained = asyncio.Event()
        """Set once nothing is queued or running, after `Drain`."""
        self._machine = life_name(spec.name, life)
        self._spec, self._executor, self._meter = spec, executor, meter
        self._sensor = sensor or DeviceSensor()
        self._peers, self._tell = peers, tell
        self._observers = observers
        self._loop = asyncio.get_running_loop()
        self._lanes = (OverlappingLanes if executor.overlaps else Lanes)(executor.lanes, self._failed)
        self._store = ActivationStore()
        self._arena, self._zero_s = arena, clock_zero_s
        self._arrived_s: dict[int, float] = {}
        """When each example arrived that is queued or running here, on the host's clock."""
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        """Fetches from other servers, and models being loaded."""
        self._busy_s = 0.0
        """Seconds that lanes ran batches since the last sample."""
        self._active_j = self._last_active_j = 0.0
        """Energy above idle since the start by profile: now, and at the last sample."""
        self._costs = RealCosts()
        self._correction = follow(1.0, 0.2)
        """How much energy above idle batches take, measured over profiled."""
        self._last = meter.read(0.0)

    @property
    def now_s(self) -> float:
        """Seconds on the clock that all servers and the gateway share."""
        return monotonic() - self._zero_s

    async def start(self) -> None:
        """Load what shall always be loaded, and return when it is."""
        entries = zip(self._spec.numbers, self._spec.models, strict=False)  # no numbers: as at the start
        models = tuple(ModelEntry(number=number, source=source) for number, source in entries)
        self.handle(scheduler.Started(models=models))
        while self._lanes.under_way:
            await asyncio.sleep(0.001)

    def receive(self, message: wire.ToServer) -> None:
        """Handle a message from the gateway."""
        match message:
            case wire.TakeBlock():
                self._take(message)
            case Forget(requests=requests):
                self._store.forget(requests)
            case RecallRequests(requests=requests):
                self.handle(RequestsCancelled(requests=requests))
            case wire.Ping():
                self._tell(wire.Pong())
            case wire.HostModel():
                self._spawn(self._host(message))
            case wire.UnhostModel(number=number):
                self._unhost(number)
            case wire.Drain():
                self._draining = True
                self._check_drained()
            case _:
                assert_never(message)

    @property
    def models(self) -> list[int]:
        """The numbers of the models that are served here."""
        return [number for number in self.scheduler.models if number not in self._retired]

    async def _host(self, message: wire.HostModel) -> None:
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
            loaded = [instance for instance, _ in self.scheduler.instances.of_model(entry.number)]
            await asyncio.to_thread(touch, self._executor, [served], loaded)
        except Exception as problem:
            error = str(problem) or type(problem).__name__
            self._unhost(entry.number)
        self._tell(wire.ModelHosted(server=self._spec.index, number=entry.number, error=error))

    def _prepare(self, message: wire.HostModel) -> tuple[ServedModel, Profile]:
        """Read a model, run every part of it once and warm it up; in a thread of its own."""
        entry = message.entry
        try:
            served = read_model(entry.source, rated=False).numbered(entry.number, weight=entry.weight)
            self._hosted.add(entry.number)
            precision, name = self._spec.host.precision, message.profile.name
            (hosted,) = host_models([served], self._executor.device, precision, [name])
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
            if number not in self.scheduler.models or not self.scheduler.instances.of_model(number):
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
            reading = await asyncio.to_thread(self._meter.read, active_j)  # sensors may take milliseconds
            device = await asyncio.to_thread(self._sensor.read)
            passed_s = max(1e-6, reading.at_s - self._last.at_s)
            power_w = (reading.energy_j - self._last.energy_j) / passed_s
            self._attribute(
                active_j, reading.energy_j - self._last.energy_j - self.scheduler.profile.idle_w * passed_s
            )
            self._last = reading
            busy = min(1.0, self._busy_s / ((monotonic() - began_s) * self._executor.lanes))
            self._busy_s = 0.0
            sample = device.sampled(busy, power_w, self.scheduler.instances.memory_bytes)
            self.handle(sample)
            self._tell(TelemetryReceived(server=self._spec.index, snapshot=self._snapshot(sample)))

    def _snapshot(self, sample: scheduler.TelemetrySampled) -> ServerSnapshot:
        return ServerSnapshot(
            taken_s=self.now_s,
            utilization=sample.utilization,
            power_w=sample.power_w,
            vram_bytes=sample.vram_bytes,
            queued=self.scheduler.queued_by_segment(),
            instances=len(self.scheduler.instances),
            power_source=self._meter.source,
            utilization_source=self._sensor.utilization_source,
            memory_source=self._sensor.memory_source,
            waiting={
                self.scheduler.models[key.model].key_text(key): why
                for key, why in self.scheduler.explain().items()
            },
            refused=dict(self.scheduler.load_gate.refused),
            faults=dict(FAULTS) or msgspec.UNSET,
        )

    def handle(self, event: scheduler.Event) -> None:
        """Pass one event to the scheduler, show observers its decisions, then carry them out."""
        now_s = self.now_s
        commands = self.scheduler.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, self._machine, event, commands)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: scheduler.Command) -> None:
        match command:
            case scheduler.RunBatch(batch=batch):
                self._lanes.run_batch(self._executor, self._store, batch, partial(self._ran, batch))
            case scheduler.LoadInstance(instance=instance):
                self._lanes.run(partial(self._executor.load, instance), partial(self._loaded, instance.id))
            case scheduler.UnloadInstance(instance=instance_id):
                self._lanes.run(
                    partial(self._executor.unload, instance_id), partial(self._unloaded, instance_id)
                )
            case scheduler.DropBlock(block=block, reason=reason):
                self._store.forget(ids_of(block.requests))
                self._waited_s(block, 0.0)
                self._tell(BlockDropped(server=self._spec.index, block=block, reason=reason))
            case WakeAt(at_s=at_s):
                self._loop.call_later(max(0.0, at_s - self.now_s), self.handle, Wake())
            case _:
                assert_never(command)

    def _take(self, message: wire.TakeBlock) -> None:
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

    def _read(self, block: Block, piece: wire.InputPiece) -> Tensors:
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
        self.handle(scheduler.BlockArrived(block=block))

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
        energy_j *= self._correction.mean
        part, is_last = self._known[batch.key.model][1], not self._lanes.under_way
        self._costs.note(batch, run, part, is_last=is_last)
        self.handle(scheduler.BatchFinished(instance=batch.instance, busy_s=run.busy_s, energy_j=energy_j))
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
            self._tell(wire.BatchDone(finished=finished, outputs=run.outputs))
        self._check_drained()

    def _waited_s(self, block: Block, until_s: float) -> float:
        """Return how long a block waited before it ran; call this once per block."""
        arrived_s = [self._arrived_s.pop(number, until_s) for number in ids_of(block.requests)]
        return max(0.0, until_s - arrived_s[-1])

    def _loaded(self, instance: int, _: object) -> None:
        self.handle(scheduler.InstanceLoaded(instance=instance))

    def _unloaded(self, instance: int, _: object) -> None:
        self.handle(scheduler.InstanceUnloaded(instance=instance))
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
            self._correction.note(measured_j / modelled_j)

    def keep_costs(self) -> None:
        """Write to the user's cache what batches cost here, for profiles that came from there."""
        for model, part in self._known.values() if self.drained.is_set() else ():
            record = self._costs.merged(model, part, self._spec.host.speed)
            if record is not None:
                path = cache_folder(model.entry.source) / PROFILES / f"{record.name}.json"
                write_kept(path, msgspec.json.encode(record))

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


# -- The process of a server: reads standard input, warms up, reports ready, and serves until drained.
#
# The process ends when the connection to its gateway closes, so nothing is left running.


def main() -> None:
    """Serve as standard input says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=wire.ServerStart)
    spec = start.spec
    keep_to_cores(spec.host)
    try:
        models, profile = read_models(spec)
        executor = make_executor(spec, models)
        warm_up(executor, models, spec.scheduler.batch_limit)
    except SlimError as error:
        print(f"slim: server {spec.name}: {error}", file=sys.stderr)
        sys.exit(wire.CANNOT_START)
    gc.collect()
    gc.freeze()  # what is here now stays: no collection needs to look at it again
    with ExitStack() as stack:
        log = _open_log(start)
        if log is not None:
            stack.enter_context(log)
        wire.run(_serve(start, executor, log, models, profile))


def keep_to_cores(host: Host) -> None:
    """Let this process use the cores of its host only, where the system can do that."""
    if hasattr(os, "sched_setaffinity") and (cores := os.sched_getaffinity(0) & set(host.cores)):
        os.sched_setaffinity(0, cores)


async def _serve(
    start: wire.ServerStart,
    executor: Executor,
    log: LogWriter | None,
    models: list[ServedModel],
    profile: Profile,
) -> None:
    spec, gone = start.spec, asyncio.Event()
    peers, arena = make_links(start)

    def received(_: wire.FrameConnection, message: wire.ToServer) -> None:
        server.receive(message)

    _, gateway = await asyncio.get_running_loop().create_unix_connection(
        lambda: wire.FrameConnection(wire.ToServer, received, lambda _: gone.set()), start.gateway_socket
    )
    server = LiveServer(
        spec,
        models,
        profile,
        executor,
        open_meter(spec.host.kind, profile.idle_w, spec.host.gpu, by=profile.energy_source),
        peers,
        gateway.send,
        clock_zero_s=start.clock_zero_s,
        life=start.life,
        observers=() if log is None else (log,),
        sensor=open_sensor(spec.sensors, spec.host),
        arena=arena,
    )
    title = f"the event log of {spec.name}"
    keeping = None if log is None else asyncio.create_task(wire.keep_log(log, title))
    async with await peers.listen(start.own_socket, server.surrender):
        await server.start()
        touch(executor, models, server.scheduler.instances.all())
        said = wire.Ready(
            index=spec.index, pid=os.getpid(), models=server.models, life=start.life, secret=start.secret
        )
        gateway.send(said)
        work = [gone.wait(), server.sample_forever(), server.drained.wait()]
        tasks = [asyncio.ensure_future(one) for one in work]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        gateway.close()
        await gone.wait()  # so that the last words are said
        with suppress(SlimError):  # nobody waits for it, and the next start can do without
            server.keep_costs()
        for task in (*pending, *([keeping] if keeping is not None else [])):
            task.cancel()
        for task in done:
            task.result()


def _open_log(start: wire.ServerStart) -> LogWriter | None:
    """Open the log of this process; its limit includes the logs from before restarts."""
    if (log := start.log) is None:
        return None
    lives = [log_path(Path(log.folder), life_name(start.spec.name, 1 + life)) for life in range(start.life)]
    limit_bytes = None
    if log.limit_bytes:
        limit_bytes = log.limit_bytes - sum(path.stat().st_size for path in lives if path.exists())
        if limit_bytes <= 0:
            return None
    writer = LogWriter(lives[-1], log.header, limit_bytes=limit_bytes)
    writer.flush()  # a process that is killed at once leaves a log that can be read
    return writer


if __name__ == "__main__":
    main()
