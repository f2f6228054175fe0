"""The front processes of a gateway: started, watched, restarted and stopped.

A front that dies costs its own clients their connections, and nobody else anything.
"""

import asyncio
import hmac
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.config import SlimError
from slimsched.serving.api.fronts.bundles import (
    Calls,
    FromFront,
    FrontDesk,
    FrontDrain,
    FrontListens,
    FrontReady,
    Regions,
    RegionsKnown,
)
from slimsched.serving.api.service import Counted, InferenceService
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.memory import SocketFolder
from slimsched.serving.live.processes import (
    BEAT_S,
    Activity,
    ChildProcess,
    CoreWaits,
    Heartbeat,
    Restarts,
    StartLimit,
    activity_of,
)
from slimsched.serving.live.wire import FrameConnection

# -- Everything that a front process needs to start, sent as JSON to its standard input.


class FrontSpec(Struct, frozen=True, kw_only=True):
    """One front process: where it listens, and where it finds the gateway and the shared memory."""

    index: int
    life: int = 1
    """Counts how often it has been started."""
    secret: str
    """Known to the gateway and its processes only; it proves to them who is calling."""
    calls_socket: str
    http_socket: str
    grpc_socket: str
    arena: str = ""
    """The file with large inputs; empty if inputs travel in messages."""
    fronts: int
    host: str
    http_port: int
    grpc_port: int
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    cors: Sequence[str] = ()
    """The origins whose web pages may use the server."""
    shared_memory: bool = False
    """Whether clients may register their own."""
    access_log: bool = False
    log_format: str = "text"
    log_level: str = "INFO"


log = logging.getLogger("slim.fronts")

FRONT = "slimsched.serving.api.fronts.front_main"
START_LIMIT_S = 60.0
"""How long a front may take until it listens, beside its waits for a core."""

STOP_LIMIT_S = 2.0
CORES_EACH = 4
"""There is one front process for this many cores; with fewer than two, the gateway reads requests itself."""


def fitting_fronts() -> int:
    """Return the number of front processes that suits this machine; 0 for none."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores // CORES_EACH if cores >= 2 * CORES_EACH else 0


class Fronts:
    """Runs `front_main` several times, and gives each front a desk while it lives."""

    def __init__(self, service: InferenceService, cluster: LiveCluster, spec: FrontSpec) -> None:
        """The spec says where to listen; the rest of it is filled in here."""
        self._service, self._cluster = service, cluster
        self._folder, secret = SocketFolder(), secrets.token_hex(16)
        root, arena = self._folder.path, cluster.arena
        self._spec = replace(
            spec,
            secret=secret,
            calls_socket=str(root / "calls"),
            http_socket=str(root / "http"),
            grpc_socket=str(root / "grpc"),
            arena=str(arena.path) if arena is not None else "",
            shared_memory=service.memory.is_allowed,
        )
        self.http_socket, self.grpc_socket = root / "http", f"unix:{root / 'grpc'}"
        self._desks: dict[FrameConnection, tuple[int, FrontDesk]] = {}
        self._processes: dict[int, ChildProcess] = {}
        self._lives, self._change = [0] * spec.fronts, 0
        self._heartbeat, self._start_limit = Heartbeat(self._look), StartLimit(START_LIMIT_S, self._look)
        self._core_waits = CoreWaits(log, lambda front: f"front {front}")
        self._listening = [asyncio.Event() for _ in range(spec.fronts)]
        self._tasks: list[asyncio.Task[None]] = []
        self._has_begun = self._stopping = False
        self._hopeless = asyncio.Event()  # a front is given up, or was not there in time at first

    @property
    def pids(self) -> list[int]:
        """The process ids of the fronts."""
        return [process.pid for process in self._processes.values()]

    async def start(self) -> tuple[int, int]:
        """Start all fronts; return the HTTP and the gRPC port once they listen."""
        spec = self._spec
        ports = [_free_port(spec.host, port) for port in (spec.http_port, spec.grpc_port)]
        self._spec = replace(spec, http_port=ports[0], grpc_port=ports[1])
        loop = asyncio.get_running_loop()
        self._socket = await loop.create_unix_server(
            lambda: FrameConnection(FromFront, self._received, self._lost), spec.calls_socket
        )
        self._service.when_models_change.append(self._introduce)
        self._service.regions.announce = self._announce
        self._tasks = [asyncio.create_task(self._supervise(front)) for front in range(spec.fronts)]
        self._tasks.append(asyncio.create_task(self._beat_forever()))
        all_listen = asyncio.create_task(self._all_listen())
        hopeless = asyncio.create_task(self._hopeless.wait())
        await asyncio.wait([all_listen, hopeless], return_when=asyncio.FIRST_COMPLETED)
        hopeless.cancel()
        if not all_listen.done():
            all_listen.cancel()
            self.abort()
            raise SlimError("the front processes do not listen; see their messages above")
        self._has_begun = True
        return ports[0], ports[1]

    async def _all_listen(self) -> bool:
        for one in self._listening:
            await one.wait()
        return True

    async def stop(self) -> None:
        """Let the fronts give their last answers, then end them, in a limited time."""
        self._stopping = True
        for connection in self._desks:
            connection.send(FrontDrain())
        waits = [asyncio.ensure_future(process.wait()) for process in self._processes.values()]
        if waits:
            await asyncio.wait(waits, timeout=self._service.limits.drain_s + STOP_LIMIT_S)
        self.abort()

    def abort(self) -> None:
        """End all fronts at once."""
        self._stopping = True
        for process in self._processes.values():
            process.kill()
        for task in self._tasks:
            task.cancel()
        with suppress(AttributeError):
            self._socket.close()
        self._folder.remove()

    async def _supervise(self, front: int) -> None:
        """Keep one front running."""
        restarts = Restarts()
        while not self._stopping:
            self._lives[front] += 1
            spec = replace(self._spec, index=front, life=self._lives[front])
            process = await ChildProcess.start(FRONT, os.environ, msgspec.json.encode(spec))
            self._processes[front] = process
            if self._stopping:
                process.kill()
            watch = asyncio.create_task(self._note_ready(front, restarts, monotonic()))
            code = await process.wait()
            watch.cancel()
            self._listening[front].clear()
            if self._has_begun:  # else all starts of a front together have this limit
                self._start_limit.forget(front)
            if not self._stopping:
                delay_s = restarts.ended(monotonic())
                if restarts.is_given_up:
                    self._hopeless.set()
                log.warning("front %d ended (exit code %d); %s", front, code, restarts.outlook(delay_s))
                await asyncio.sleep(delay_s)

    async def _note_ready(self, front: int, restarts: Restarts, began_s: float) -> None:
        """Note that a front listens."""
        await self._listening[front].wait()
        self._start_limit.forget(front)
        restarts.ready(monotonic(), monotonic() - began_s)

    def _look(self, front: int) -> Activity:
        """What the operating system says about a front's process."""
        return activity_of(self._processes[front].pid)

    async def _beat_forever(self) -> None:
        """End fronts that hang, and those that do not listen in time, as nobody hears them beat yet."""
        while True:
            await asyncio.sleep(BEAT_S)
            for front in self._heartbeat.beat({front: one for one, (front, _) in self._desks.items()}):
                log.warning("front %d does not answer; it is ended", front)
                self._processes[front].kill()
            late = self._start_limit.beat(self._starting())
            self._core_waits.update({**self._heartbeat.core_waits_s, **self._start_limit.core_waits_s})
            for front in late:
                log.warning("front %d does not listen after %g s; it is ended", front, START_LIMIT_S)
                self._processes[front].kill()
                self._start_limit.forget(front)
                if not self._has_begun:
                    self._hopeless.set()

    def _starting(self) -> list[int]:
        """The fronts that run and do not listen yet."""
        running = [front for front, process in self._processes.items() if not process.has_ended]
        return [front for front in running if not self._listening[front].is_set()]

    def _received(self, connection: FrameConnection, message: FromFront) -> None:
        found = self._desks.get(connection)
        match message:
            case Calls() if found is not None:
                found[1].received(message)
            case RegionsKnown(change=change) if found is not None:
                found[1].regions_known(change)
            case Counted() if found is not None:
                self._service.tally.add(message)
            case FrontListens() if found is not None:
                self._listening[found[0]].set()
            case FrontReady() if found is None and self._is_ours(message):
                desk = FrontDesk(self._service, self._cluster, connection)
                self._desks[connection] = message.front, desk
                self._share(desk)  # before it listens: it follows the introduction
                desk.introduce(self._service.limits, self._spec.fronts)
            case _ if found is None:
                log.warning("someone who is no front called at the gateway's socket; it is ignored")
                connection.abort()

    def _is_ours(self, ready: FrontReady) -> bool:
        knows = hmac.compare_digest(ready.secret.encode(), self._spec.secret.encode())
        return knows and 0 <= ready.front < self._spec.fronts and ready.life == self._lives[ready.front]

    def _lost(self, connection: FrameConnection) -> None:
        if (found := self._desks.pop(connection, None)) is not None:
            found[1].close()

    def _introduce(self) -> None:
        for _, desk in self._desks.values():
            desk.introduce(self._service.limits, self._spec.fronts)

    async def _announce(self) -> None:
        """Tell all fronts which regions of shared memory there are, and wait until they know."""
        self._change += 1
        shares = [self._share(desk) for _, desk in self._desks.values()]
        if shares:
            await asyncio.wait(shares)

    def _share(self, desk: FrontDesk) -> "asyncio.Future[None]":
        return desk.share(Regions(change=self._change, entries=self._service.regions.entries))


def _free_port(host: str, port: int) -> int:
    """Return a port that nobody listens at; raises if somebody listens at this one.

    Fronts share a port, so that the system would not tell them.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])
