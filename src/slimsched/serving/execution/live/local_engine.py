"""The local engine: one supervised operating-system process for each server on this machine."""

import asyncio
import hmac
import logging
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.domain.profile import record_of
from slimsched.serving.execution.live.child_process import ChildProcess
from slimsched.serving.execution.live.core_waits import CoreWaits
from slimsched.serving.execution.live.engine import EngineListener
from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.heartbeat import BEAT_S, Heartbeat, StartLimit
from slimsched.serving.execution.live.input_arena import open_arena
from slimsched.serving.execution.live.messages import Drain, Ready, ToGateway, ToServer
from slimsched.serving.execution.live.process_activity import Activity, activity_of, is_stopped
from slimsched.serving.execution.live.restarts import FAILED_STARTS, Restarts
from slimsched.serving.execution.live.server_spec import CANNOT_START, ServerSpec
from slimsched.serving.execution.live.socket_folder import SocketFolder

log = logging.getLogger("slim.engine")

START_LIMIT_S = 120.0
"""How long a server may take from its start until it is ready, beside its waits for a core."""

STOP_LIMIT_S = 3.0
"""How long servers that have no work left may take to end when the engine stops."""

LEAVE_LIMIT_S = 30.0
"""How long a single server that was told to leave may take to finish its work."""

LOOK_S = 0.01
SERVER = "slimsched.serving.execution.live.server_main"
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Lets glibc keep a batch's freed memory for the next one, which else pays for every page again."""

KERNELS = 8192
"""Convolutions that oneDNN caches: 52 keys, about 5 per segment, dozens of batch sizes."""


class LocalEngine:
    """Runs `server_main` for each spec, restarts servers that die or hang, and cleans up after them.

    With `at_first`, only that many servers start at first; others are started and stopped one by one. So many
    `writers` put inputs into the shared memory: this process, and front processes.
    """

    def __init__(self, specs: Sequence[ServerSpec], *, at_first: int | None = None, writers: int = 1) -> None:
        self._folder, self._secret = SocketFolder(), secrets.token_hex(16)
        root = self._folder.path
        self.arena = open_arena(writers)
        self._specs = [
            msgspec.structs.replace(
                spec,
                gateway_socket=str(root / "gateway"),
                own_socket=str(root / f"server-{spec.index}"),
                shared_prefix=self._folder.name,
                arena=str(self.arena.path) if self.arena is not None else "",
                secret=self._secret,
            )
            for spec in specs
        ]
        self._processes: dict[int, ChildProcess] = {}
        self._connections: dict[int, FrameConnection] = {}
        self._server_by: dict[FrameConnection, int] = {}
        self._ready = {spec.index: asyncio.Event() for spec in specs}
        self._restarts = {index: Restarts() for index in self._ready}
        self._getting_ready: dict[int, float] = {}  # when they were started
        self._killed: dict[int, str] = {}  # why the engine itself ended a server
        self._given_up: set[int] = set()
        self._has_begun = False  # all first servers were ready
        self._heartbeat, self._core_waits = Heartbeat(self._look), CoreWaits(log, self._title)
        self._start_limit = StartLimit(START_LIMIT_S, self._look)
        self._too_late = asyncio.Event()  # a first server was not ready in time
        self._beating: asyncio.Task[None] | None = None
        self._supervisors: dict[int, asyncio.Task[None]] = {}
        self._wanted = set(range(len(specs) if at_first is None else at_first))
        self._lives = dict.fromkeys(self._ready, 0)
        self._starting: set[asyncio.Task[ChildProcess]] = set()
        self._stopping = False
        self._is_needed: Callable[[int], bool] = lambda server: False

    async def start(self, listener: EngineListener) -> None:
        """Start the first servers and return when they are all ready."""
        self._listener = listener
        path = self._specs[0].gateway_socket
        self._socket = await asyncio.get_running_loop().create_unix_server(
            lambda: FrameConnection(ToGateway, self._received, self._lost), path
        )
        for server in sorted(self._wanted):
            self._supervisors[server] = asyncio.create_task(self._supervise(self._specs[server]))
        self._beating = asyncio.create_task(self._beat_forever())
        everyone = asyncio.create_task(self._all_ready())
        late = asyncio.create_task(self._too_late.wait())
        try:
            tasks = [everyone, late, *self._supervisors.values()]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop(drain=False)
            raise
        finally:
            late.cancel()
        if everyone not in done:
            await self.stop(drain=False)
            for task in done:
                task.result()
            raise SlimError(f"servers were not ready after {START_LIMIT_S:g} s; see their messages above")
        self._has_begun = True

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting."""
        connection = self._connections.get(server)
        if connection is not None:
            connection.send(message)

    def set_models(self, entries: Sequence[ModelEntry], cluster: Cluster) -> None:
        """Let servers that start from now on begin with these models."""
        for place, spec in enumerate(self._specs):
            profile = cluster.profiles[spec.index]
            self._specs[place] = msgspec.structs.replace(
                spec,
                models=[entry.source for entry in entries],
                numbers=[entry.number for entry in entries],
                profiles=[record_of(profile, cluster.models[entry.number]) for entry in entries],
            )

    def peer_address(self, server: int) -> str:
        """Return the socket where other servers fetch this server's activations."""
        return self._specs[server].own_socket

    def pid(self, server: int) -> int:
        """Return the process id of a server."""
        return self._processes[server].pid

    def kill(self, server: int) -> None:
        """Kill a server at once with SIGKILL."""
        self._processes[server].kill()

    def is_up(self, server: int) -> bool:
        """Whether a server accepts work."""
        return server in self._connections and server in self._wanted

    def start_server(self, server: int) -> bool:
        """Begin to start a server; return False if its last process has not ended yet."""
        last = self._supervisors.get(server)
        if self._stopping or (last is not None and not last.done()):
            return False
        self._wanted.add(server)
        self._given_up.discard(server)
        self._restarts[server] = Restarts()
        self._supervisors[server] = asyncio.create_task(self._supervise(self._specs[server]))
        return True

    def drain_server(self, server: int) -> None:
        """Let a server finish its work, and stop it once nobody needs its activations."""
        self._wanted.discard(server)
        self._listener.server_leaving(server)
        self._leave(server)

    def _leave(self, server: int) -> None:
        if self._is_needed(server) and server in self._connections and not self._stopping:
            asyncio.get_running_loop().call_later(LOOK_S, self._leave, server)
        else:
            self.send(server, Drain())
            self._end_later(server, LEAVE_LIMIT_S, "it was told to leave and did not")

    def watch_need(self, is_needed: Callable[[int], bool]) -> None:
        """Set the function that tells whether a leaving server is still needed."""
        self._is_needed = is_needed

    def end(self) -> None:
        """Kill every server at once and clean up, because this process is about to end."""
        self._stopping = True
        for process in self._processes.values():
            process.kill()
        self._folder.remove()

    async def stop(self, *, drain: bool = True) -> None:
        """Drain or kill every server, and remove sockets and shared memory."""
        self._stopping = True
        if self._starting:
            await asyncio.wait(self._starting)  # so that none is overlooked
        if drain:
            for index in self._connections:
                self.send(index, Drain())
            await self._all_ended([self._processes[index] for index in self._connections], STOP_LIMIT_S)
        for process in self._processes.values():
            process.kill()
        await self._all_ended(list(self._processes.values()), STOP_LIMIT_S)
        for task in (*self._supervisors.values(), *([self._beating] if self._beating else [])):
            task.cancel()
        self._socket.close()
        if self.arena is not None:
            self.arena.close()
        self._folder.remove()

    async def _all_ended(self, processes: Sequence[ChildProcess], limit_s: float) -> None:
        if waiting := [asyncio.ensure_future(process.wait()) for process in processes]:
            await asyncio.wait(waiting, timeout=limit_s)

    async def _all_ready(self) -> None:
        for server in sorted(self._wanted):
            await self._ready[server].wait()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self._beat()
            except Exception:
                log.exception("a heartbeat failed; the next one follows")

    def _look(self, server: int) -> Activity:
        """What the operating system says about a server's process."""
        return activity_of(self.pid(server))

    def _title(self, server: int) -> str:
        return f"server {self._specs[server].name}"

    def _beat(self) -> None:
        """End servers that hang: those that do not answer, and those that do not get ready."""
        for server in self._heartbeat.beat(self._connections):
            self._end(server, "it did not answer")
        late = self._start_limit.beat(list(self._getting_ready))
        if self._core_waits.update({**self._heartbeat.core_waits_s, **self._start_limit.core_waits_s}):
            self._listener.servers_wait(self._core_waits.waiting)
        for server in late:
            self._end(server, f"it was not ready after {START_LIMIT_S:g} s")
            if not self._has_begun:
                self._too_late.set()
        for server in list(self._getting_ready):
            if is_stopped(self.pid(server)):
                self._end(server, "it was stopped while it started")

    def _end(self, server: int, why: str) -> None:
        """Take a server's work back and kill its process; SIGKILL ends a stopped process too."""
        process = self._processes.get(server)
        if process is None or process.has_ended:
            return
        self._killed[server] = why
        if (connection := self._connections.get(server)) is not None:
            connection.abort()  # what it still sends, if it wakes, reaches nobody
        self._gone(server)
        process.kill()

    def _end_later(self, server: int, limit_s: float, why: str) -> None:
        """Kill a server's process if it still runs after this time."""
        life = self._lives[server]

        def end() -> None:
            if life == self._lives[server] and not self._stopping:
                self._end(server, why)

        asyncio.get_running_loop().call_later(limit_s, end)

    async def _supervise(self, spec: ServerSpec) -> None:
        """Keep one server alive until it must leave or is given up."""
        index = spec.index
        while not self._stopping and index in self._wanted:
            self._lives[index] += 1
            living = msgspec.structs.replace(self._specs[index], life=self._lives[index])
            starting = asyncio.create_task(self._start_process(living))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)
            process = await asyncio.shield(starting)
            code = await process.wait()
            if self._stopping:
                return
            self._getting_ready.pop(index, None)
            if self._has_begun:  # else all starts of a server together have this limit
                self._start_limit.forget(index)
            self._gone(index)
            if code == CANNOT_START and not self._has_begun:
                raise SlimError(f"server {spec.name} cannot start; see its message above")
            why = self._killed.pop(index, "") or _ending(code)
            if index not in self._wanted:
                return
            wait_s = self._restarts[index].ended(monotonic())
            if self._restarts[index].is_given_up and index not in self._given_up:
                self._give_up(spec, why)
            log.warning("server %s ended: %s; %s", spec.name, why, self._restarts[index].outlook(wait_s))
            await asyncio.sleep(wait_s)

    def _give_up(self, spec: ServerSpec, why: str) -> None:
        """Say that nobody should wait for a server, and why; it is still tried from time to time."""
        times = f"{spec.name} ended {FAILED_STARTS} times before it was ready ({why})"
        if not self._has_begun:
            raise SlimError(f"{times}; see its messages above")
        reason = f"{times} and was given up"
        log.error("server %s", reason)
        self._given_up.add(spec.index)
        self._listener.server_given_up(spec.index, reason, len(self._wanted - self._given_up))

    async def _start_process(self, spec: ServerSpec) -> ChildProcess:
        environment = {**os.environ, **_environment(spec)}
        process = await ChildProcess.start(SERVER, environment, msgspec.json.encode(spec))
        self._processes[spec.index] = process
        self._getting_ready[spec.index] = monotonic()
        return process

    def _received(self, connection: FrameConnection, message: ToGateway) -> None:
        """Handle a server's message; the first one says that it is ready, and proves who it is."""
        if (server := self._server_of(connection)) is not None:
            self._listener.received(server, message)
        elif isinstance(message, Ready) and self._is_ours(message):
            if not self._stopping:
                self._welcome(connection, message)
        else:
            log.warning("someone who is none of the servers called at the gateway's socket; it is ignored")
            connection.abort()

    def _is_ours(self, ready: Ready) -> bool:
        """Whether this comes from the server's present process: nobody else knows the secret."""
        knows = hmac.compare_digest(ready.secret.encode(), self._secret.encode())
        return knows and ready.server in self._getting_ready and ready.life == self._lives[ready.server]

    def _welcome(self, connection: FrameConnection, ready: Ready) -> None:
        """A server is ready: give it work from now on."""
        server, took_s = ready.server, monotonic() - self._getting_ready.pop(ready.server)
        self._connections[server] = connection
        self._server_by[connection] = server
        self._ready[server].set()
        self._given_up.discard(server)
        self._start_limit.forget(server)
        self._restarts[server].ready(monotonic(), took_s)
        if ready.life > 1:
            log.info("server %s is back after %.1f s", self._specs[server].name, took_s)
        self._listener.server_up(server, ready.models)

    def _lost(self, connection: FrameConnection) -> None:
        """A connection is closed, so its server is gone."""
        if (server := self._server_of(connection)) is not None:
            self._gone(server)
            self._end_later(server, STOP_LIMIT_S, "it closed its connection and did not end")

    def _server_of(self, connection: FrameConnection) -> int | None:
        return self._server_by.get(connection)

    def _gone(self, server: int) -> None:
        """Report once that a server is down."""
        if (connection := self._connections.pop(server, None)) is not None:
            del self._server_by[connection]
        if self._ready[server].is_set():
            self._ready[server].clear()
            if not self._stopping:
                self._listener.server_down(server)


def _environment(spec: ServerSpec) -> dict[str, str]:
    """Return the environment: threads, size of oneDNN's kernel cache, GPU and its MPS share."""
    threads = str(spec.host.threads)
    found = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KERNELS),
        **KEEP_MEMORY,
    }
    if spec.host.kind == "cuda":
        found |= {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(spec.host.mps_percentage),
            "CUDA_VISIBLE_DEVICES": str(spec.host.gpu),
        }
    return found


def _ending(code: int) -> str:
    """Say in words how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
