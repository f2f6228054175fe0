"""Engines: what starts servers for a live cluster and carries messages to them.

`Engine` is the interface, `LocalEngine` runs each server as a supervised process of this machine. The engine
of `serving/ray` has servers on many machines.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Protocol

import msgspec
from msgspec.structs import replace

from slimsched.core.config import ConfigError
from slimsched.core.log import LogWriter, log_path
from slimsched.serving.domain.cluster import Cluster, Host
from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.domain.profile import record_of
from slimsched.serving.live import wire
from slimsched.serving.live.memory import InputArena, open_arena
from slimsched.serving.live.processes import Supervisor
from slimsched.serving.routers.autoscaler import ReportedLoad
from slimsched.serving.scenario.files import RunSetting
from slimsched.serving.scenario.scenario import Scenario

# -- The interface of engines, which start servers for a live cluster and carry messages to them.


class EngineListener(Protocol):
    """Receives the events of an engine."""

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """A server is warmed up and takes work, with these models; None: with all of them."""

    def server_down(self, server: int) -> None:
        """A server is gone; the engine starts it again, unless it must leave."""

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """A server cannot be started; `left` others run or are being started."""

    def server_leaving(self, server: int) -> None:
        """A server accepts no more work; `server_down` follows when its work is done."""

    def is_needed(self, server: int) -> bool:
        """Whether requests under way need a server's activations."""

    def load(self) -> ReportedLoad:
        """Return the present load, by which an engine may decide how many servers run."""

    def received(self, server: int, message: wire.ToGateway) -> None:
        """A server has sent a message."""


class Engine(Protocol):
    """Starts, supervises and stops servers, and carries messages."""

    clock_zero_s: float
    """When the clock of gateway and servers began, on this host's monotonic clock."""
    first_id: int
    """The first number that the gateway gives to a request or a block."""

    @property
    def waiting(self) -> Collection[int]:
        """The servers that are silent because they get no core: the machine is full."""

    @property
    def arena(self) -> InputArena | None:
        """Memory that the gateway shares with all servers; None if they are on other machines."""

    async def start(self, listener: EngineListener) -> None:
        """Start every server and return when all are ready."""

    def send(self, server: int, message: wire.ToServer) -> None:
        """Send without waiting; messages to a dead server are lost, and `server_down` reports that."""

    def peer_address(self, server: int) -> str:
        """Return the address where other servers fetch this server's activations."""

    def end(self) -> None:
        """Kill every server at once and clean up, because this process is about to end."""

    async def stop(self, *, drain: bool = True) -> None:
        """Stop every server; with `drain`, after its work is done."""


# -- The event logs of one live run, of the gateway and of its servers.
#
# Each process writes its own file in the run's folder: the gateway `events.jsonl.gz`, a server
# `events-server-0.jsonl.gz`, and the same server after a restart `events-server-0#2.jsonl.gz`.


class RunLog(LogWriter):
    """The gateway's log, which also tells each server where to write its own, beside it.

    The gateway may use half of the size limit; the servers share the other half.
    """

    def __init__(
        self, folder: Path, setting: RunSetting, servers: int, *, limit_bytes: int | None = None
    ) -> None:
        header = setting.header()
        half = None if limit_bytes is None else limit_bytes // 2
        server_limit_bytes = 0 if half is None else max(1, half // max(1, servers))
        super().__init__(log_path(folder), header, limit_bytes=half)
        self.for_servers = wire.ServerLog(folder=str(folder), header=header, limit_bytes=server_limit_bytes)

    async def keep(self, make_room: Callable[[], None] = lambda: None) -> None:
        """Every second, write the log to disk and make room; report once when the log is full."""
        hint = "; raise --log-limit to keep more"
        await wire.keep_log(self, "the gateway's event log", hint, make_room)


# -- The engine of one machine: a supervised process for each server.

START_LIMIT_S = 120.0
"""How long a server may take from its start until it is ready, beside its waits for a core."""

LEAVE_LIMIT_S = 30.0
"""How long a single server that was told to leave may take to finish its work."""

LOOK_S = 0.01
SERVER = "slimsched.serving.live.server"
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Lets glibc keep a batch's freed memory for the next one, which else pays for every page again."""

KERNELS = 8192
"""Convolutions that oneDNN caches: 52 keys, about 5 per segment, dozens of batch sizes."""


def specs_of(scenario: Scenario) -> list[wire.ServerSpec]:
    """Return what each server of a scenario is to do; refuse a scenario that can only be simulated."""
    cluster, specs = scenario.cluster, []
    for index, (name, host) in enumerate(zip(cluster.names, scenario.hosts, strict=True)):
        if host is None:
            raise ConfigError(
                f"server '{name}' of scenario '{scenario.name}' has no host, so it can only be simulated; "
                'add host = { kind = "cpu" } to its [[server]] section'
            )
        specs.append(
            wire.ServerSpec(
                index=index,
                name=name,
                host=host,
                scheduler=scenario.schedulers[index],
                models=[model.entry.source for model in cluster.models],
                profiles=[record_of(cluster.profiles[index], model) for model in cluster.models],
                telemetry_period_s=scenario.telemetry.period_s,
                sensors=scenario.telemetry.sensors,
            )
        )
    return specs


class LocalEngine(Supervisor):
    """Runs every server as a process of this machine.

    With `at_first`, only that many servers start at first; others are started and stopped one by one. So many
    `writers` put inputs into the shared memory: this process, and front processes. With a log, each server
    writes its own beside it.
    """

    first_id = 0

    def __init__(
        self,
        specs: Sequence[wire.ServerSpec],
        *,
        at_first: int | None = None,
        writers: int = 1,
        clock_zero_s: float | None = None,
        log: RunLog | None = None,
    ) -> None:
        self.clock_zero_s = monotonic() if clock_zero_s is None else clock_zero_s
        self.arena = open_arena(writers)
        self._specs, self._server_log = list(specs), None if log is None else log.for_servers
        self._at_first = len(specs) if at_first is None else at_first
        super().__init__(
            "server",
            [spec.name for spec in specs],
            module=SERVER,
            messages=wire.ToGateway,
            start_limit_s=START_LIMIT_S,
            log=logging.getLogger("slim.engine"),
        )
        self._listener: EngineListener

    async def start(self, listener: EngineListener) -> None:
        """Start the first servers and return when they are all ready."""
        self._listener = listener
        try:
            await self.start_first(range(self._at_first))
        except BaseException:
            await LocalEngine.stop(self, drain=False)  # whatever stopping means to a kept engine
            raise

    def set_models(self, entries: Sequence[ModelEntry], cluster: Cluster) -> None:
        """Let servers that start from now on begin with these models."""
        for place, spec in enumerate(self._specs):
            profile = cluster.profiles[spec.index]
            self._specs[place] = replace(
                spec,
                models=[entry.source for entry in entries],
                numbers=[entry.number for entry in entries],
                profiles=[record_of(profile, cluster.models[entry.number]) for entry in entries],
            )

    def peer_address(self, server: int) -> str:
        """Return the socket where other servers fetch this server's activations."""
        return str(self.folder.path / f"server-{server}")

    def start_server(self, server: int) -> bool:
        """Begin to start a server; return False if its last process has not ended yet."""
        return self.begin(server)

    def drain_server(self, server: int) -> None:
        """Let a server finish its work, and stop it once nobody needs its activations."""
        self.leave(server)
        self._listener.server_leaving(server)
        self._leave(server)

    def _leave(self, server: int) -> None:
        if self.is_connected(server) and self._listener.is_needed(server) and not self.is_stopping:
            asyncio.get_running_loop().call_later(LOOK_S, self._leave, server)
        else:
            self.send(server, wire.Drain())
            self.end_later(server, LEAVE_LIMIT_S, "it was told to leave and did not")

    async def stop(self, *, drain: bool = True) -> None:
        """Drain or kill every server, and remove sockets and shared memory."""
        await self.stop_all(wire.Drain() if drain else None)
        if self.arena is not None:
            self.arena.close()

    def process_of(self, child: int, life: int) -> tuple[bytes, Mapping[str, str]]:
        """Return what a server's process must know, and its environment."""
        start, spec = self.start_of(child, life), self._specs[child]
        return msgspec.json.encode(start), environment(spec.host)

    def start_of(self, server: int, life: int) -> wire.ServerStart:
        """Return everything that a server's process needs to start."""
        return wire.ServerStart(
            spec=self._specs[server],
            life=life,
            secret=self.secret,
            clock_zero_s=self.clock_zero_s,
            gateway_socket=self.socket,
            own_socket=self.peer_address(server),
            shared_prefix=self.folder.name,
            arena="" if self.arena is None else str(self.arena.path),
            log=self._server_log,
        )

    def joined(self, child: int, connection: wire.FrameConnection, message: wire.Ready) -> None:
        """A server is ready: it gets work from now on."""
        self.ready(child)
        self._listener.server_up(child, message.models)

    def received(self, child: int, message: wire.ToGateway) -> None:
        """A server has sent a message."""
        self._listener.received(child, message)

    def lost(self, child: int) -> None:
        """A server is gone."""
        if not self.is_stopping:
            self._listener.server_down(child)

    def given_up(self, child: int, reason: str, left: int) -> None:
        """A server cannot be started."""
        self._listener.server_given_up(child, reason, left)


def environment(host: Host) -> dict[str, str]:
    """Return the environment: threads, size of oneDNN's kernel cache, GPU and its MPS share."""
    threads = str(host.threads)
    found = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KERNELS),
        **KEEP_MEMORY,
    }
    if host.kind == "cuda":
        found |= {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(host.mps_percentage),
            "CUDA_VISIBLE_DEVICES": host.slice or str(host.gpu),
        }
    return found
