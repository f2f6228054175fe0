"""The local engine: one supervised operating-system process for each server on this machine."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from slimsched.kernel.errors import SlimError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model_change import ModelEntry
from slimsched.serving.domain.profile_record import record_of
from slimsched.serving.execution.live import shared_tensor
from slimsched.serving.execution.live.engine import EngineListener
from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.input_arena import open_arena
from slimsched.serving.execution.live.messages import Drain, Ready, ToGateway, ToServer
from slimsched.serving.execution.live.server_spec import ServerSpec

START_LIMIT_S = 120.0
LOOK_S = 0.01
KERNELS = 8192
"""Convolutions that oneDNN caches: 52 keys, about 5 per segment, dozens of batch sizes."""

RESTART_AFTER_S = (0.1, 0.5, 2.0, 5.0, 10.0)


class LocalEngine:
    """Runs `server_main` for each spec, restarts servers that die, and cleans up after them.

    With `at_first`, only that many servers start at first; others are started and stopped one by one.
    """

    def __init__(self, specs: Sequence[ServerSpec], *, at_first: int | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slim-")
        root, prefix = Path(self._folder.name), f"slim-{os.getpid()}"
        self._prefix = prefix
        self.arena = open_arena(prefix)
        self._specs = [
            msgspec.structs.replace(
                spec,
                gateway_socket=str(root / "gateway"),
                own_socket=str(root / f"server-{spec.index}"),
                shared_prefix=prefix,
                arena=str(self.arena.path) if self.arena is not None else "",
            )
            for spec in specs
        ]
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._connections: dict[int, FrameConnection] = {}
        self._ready = {spec.index: asyncio.Event() for spec in specs}
        self._failures = dict.fromkeys(self._ready, 0)
        self._supervisors: dict[int, asyncio.Task[None]] = {}
        self._wanted = set(range(len(specs) if at_first is None else at_first))
        self._lives = dict.fromkeys(self._ready, 0)
        self._starting: set[asyncio.Task[asyncio.subprocess.Process]] = set()
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
        everyone = asyncio.create_task(self._all_ready())
        tasks = [everyone, *self._supervisors.values()]
        try:
            done, _ = await asyncio.wait(tasks, timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop(drain=False)
            raise
        if everyone not in done:
            await self.stop(drain=False)
            for task in done:
                task.result()
            raise SlimError(f"servers were not ready after {START_LIMIT_S:g} s; see their messages above")

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

    def watch_need(self, is_needed: Callable[[int], bool]) -> None:
        """Set the function that tells whether a leaving server is still needed."""
        self._is_needed = is_needed

    async def stop(self, *, drain: bool = True) -> None:
        """Drain or kill every server, and remove sockets and shared memory."""
        self._stopping = True
        if self._starting:
            await asyncio.wait(self._starting)  # so that none is overlooked
        for index, connection in list(self._connections.items()):
            if drain:
                self.send(index, Drain())
            else:
                connection.close()
        for index, process in self._processes.items():
            try:
                patience_s = 30.0 if drain and index in self._connections else 0.2  # no work while it starts
                await asyncio.wait_for(process.wait(), timeout=patience_s)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for task in self._supervisors.values():
            task.cancel()
        self._socket.close()
        if self.arena is not None:
            self.arena.close()
        shared_tensor.clear(self._prefix)
        self._folder.cleanup()

    async def _all_ready(self) -> None:
        for server in sorted(self._wanted):
            await self._ready[server].wait()

    async def _supervise(self, spec: ServerSpec) -> None:
        """Keep one server alive; give up if it keeps dying before it is ready."""
        while not self._stopping and spec.index in self._wanted:
            self._lives[spec.index] += 1
            living = msgspec.structs.replace(self._specs[spec.index], life=self._lives[spec.index])
            starting = asyncio.create_task(self._start_process(living))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)
            process = await asyncio.shield(starting)
            code = await process.wait()
            if self._stopping:
                return
            was_ready = self._ready[spec.index].is_set()
            self._gone(spec.index)
            if spec.index not in self._wanted:
                return
            self._failures[spec.index] = 0 if was_ready else self._failures[spec.index] + 1
            tries = self._failures[spec.index]
            if tries >= len(RESTART_AFTER_S):
                raise SlimError(f"{spec.name} ended {tries} times before it was ready (exit code {code})")
            await asyncio.sleep(RESTART_AFTER_S[tries])

    async def _start_process(self, spec: ServerSpec) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "slimsched.serving.execution.live.server_main",
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the gateway, which stops its servers in order
            env={**os.environ, **_environment(spec)},
        )
        self._processes[spec.index] = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec))
        process.stdin.close()
        return process

    def _received(self, connection: FrameConnection, message: ToGateway) -> None:
        """Handle a server's message; the first one says that it is ready."""
        if isinstance(message, Ready) and not self._stopping:
            self._connections[message.server] = connection
            self._ready[message.server].set()
            self._listener.server_up(message.server, message.models)
        elif (server := self._server_of(connection)) is not None:
            self._listener.received(server, message)

    def _lost(self, connection: FrameConnection) -> None:
        """A connection is closed, so its server is gone."""
        if (server := self._server_of(connection)) is not None:
            self._gone(server)

    def _server_of(self, connection: FrameConnection) -> int | None:
        return next((server for server, one in self._connections.items() if one is connection), None)

    def _gone(self, server: int) -> None:
        """Report once that a server is down."""
        self._connections.pop(server, None)
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
    }
    if spec.host.kind == "cuda":
        found |= {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(spec.host.mps_percentage),
            "CUDA_VISIBLE_DEVICES": str(spec.host.gpu),
        }
    return found
