"""The processes of a local cluster: one for each server, started, watched, restarted and given up.

The local engine: one supervised operating-system process for each server on this machine.
"""

import asyncio
import hmac
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.config import SlimError
from slimsched.core.log import LogWriter, log_path
from slimsched.serving.domain.cluster import Cluster, life_name
from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.domain.profile import record_of
from slimsched.serving.live.memory import InputArena, SocketFolder, open_arena
from slimsched.serving.live.wire import (
    CANNOT_START,
    Drain,
    FrameConnection,
    Ping,
    Ready,
    ServerSpec,
    ToGateway,
    ToServer,
)
from slimsched.serving.routers.autoscaler import ReportedLoad
from slimsched.serving.scenario.files import RunSetting

# -- The interface of engines, which start servers for a live cluster and carry messages to them.


class EngineListener(Protocol):
    """Receives the events of an engine."""

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """A server is warmed up and takes work, with these models; None: with all of them."""
        ...

    def server_down(self, server: int) -> None:
        """A server is gone; the engine starts it again, unless it must leave."""
        ...

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """A server cannot be started; `left` others run or are being started."""
        ...

    def servers_wait(self, servers: Collection[int]) -> None:
        """These servers, and no others, are silent because they get no core: the machine is full."""
        ...

    def server_leaving(self, server: int) -> None:
        """A server accepts no more work; `server_down` follows when its work is done."""
        ...

    def received(self, server: int, message: ToGateway) -> None:
        """A server has sent a message."""
        ...


class Engine(Protocol):
    """Starts, supervises and stops servers, and carries messages."""

    @property
    def arena(self) -> InputArena | None:
        """Memory that the gateway shares with all servers; None if they are on other machines."""
        ...

    async def start(self, listener: EngineListener) -> None:
        """Start every server and return when all are ready."""
        ...

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting; messages to a dead server are lost, and `server_down` reports that."""
        ...

    def peer_address(self, server: int) -> str:
        """Return the address where other servers fetch this server's activations."""
        ...

    def kill(self, server: int) -> None:
        """Kill a server at once, as a fault would."""
        ...

    def end(self) -> None:
        """Kill every server at once and clean up, because this process is about to end."""
        ...

    async def stop(self, *, drain: bool = True) -> None:
        """Stop every server; with `drain`, after its work is done."""
        ...


@runtime_checkable
class ModelChanger(Protocol):
    """An engine whose servers can load other models while they run."""

    def set_models(self, entries: Sequence[ModelEntry], cluster: Cluster) -> None:
        """Let servers that start from now on begin with these models."""
        ...


@runtime_checkable
class LoadWatcher(Protocol):
    """An engine that starts and stops servers by the load."""

    def watch_load(self, load: Callable[[], ReportedLoad]) -> None:
        """Set the function that returns the current load."""
        ...


# -- A process of ours, a server or a front, started and awaited without holding up the event loop.
#
# An event loop that starts a process by itself stops for 25 to 70 ms meanwhile: it copies the page tables of
# the gateway, and waits until the new program runs. That alone would make answers late.


class ChildProcess:
    """Runs a module that reads its spec from standard input, and knows when it ends."""

    def __init__(
        self, module: str, environment: Mapping[str, str], spec: bytes, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the gateway, which stops its servers in order; but no session of
            # its own: Linux shares out cores by session, and two servers would leave the gateway a third
            env=dict(environment),
        )
        self._ended, self._loop = asyncio.Event(), loop
        Thread(target=self._follow, args=(spec,), name=f"process {self.pid}", daemon=True).start()

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str], spec: bytes) -> "ChildProcess":
        """Start a module that reads this spec from its standard input."""
        return await asyncio.to_thread(cls, module, environment, spec, asyncio.get_running_loop())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.returncode is not None

    def kill(self) -> None:
        """Send SIGKILL, which ends a stopped process too; nothing happens if it has ended."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal that ended it."""
        await self._ended.wait()
        code: int = self._process.returncode
        return code

    def _follow(self, spec: bytes) -> None:
        """Hand over the spec and wait for the end; in a thread of its own."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it ended before it read all
            self._process.stdin.write(spec)
            self._process.stdin.close()
        self._process.wait()
        with suppress(RuntimeError):  # the loop has ended before
            self._loop.call_soon_threadsafe(self._ended.set)


# -- Restarts: when a server that ended starts again, and when it is given up.

RESTART_AFTER_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Time before the next start, by how many lives in a row were short."""

HEALTHY_S = 5.0
"""A life that was ready for this long is not short: the next start comes soon again."""

FAILED_STARTS = 5
"""After this many starts in a row that were never ready, the server is given up."""

TRY_AGAIN_S = 60.0
"""A server that was given up is still tried this often: its cause may go away, as a full disk does."""


class Restarts:
    """Remembers how the lives of one server went."""

    def __init__(self) -> None:
        self._short = 0  # lives in a row
        self._failed = 0  # starts in a row
        self._ready_s: float | None = None
        self._took_s: float | None = None  # the last start that succeeded

    @property
    def is_given_up(self) -> bool:
        """Whether nobody should wait for this server."""
        return self._failed >= FAILED_STARTS

    def ready(self, now_s: float, took_s: float) -> None:
        """The server takes work; its start took this long."""
        self._ready_s, self._took_s, self._failed = now_s, took_s, 0

    def ended(self, now_s: float) -> float:
        """Return how long to wait before the next start."""
        ready_s, self._ready_s = self._ready_s, None
        self._failed += ready_s is None
        is_healthy = ready_s is not None and now_s - ready_s >= HEALTHY_S
        self._short = 0 if is_healthy else self._short + 1
        if self.is_given_up:
            return TRY_AGAIN_S
        return RESTART_AFTER_S[min(self._short, len(RESTART_AFTER_S) - 1)]

    def outlook(self, wait_s: float) -> str:
        """Say when the server is started again, and how long that took the last time."""
        when = "at once" if wait_s < 1.0 else f"in {wait_s:g} s"
        took = "" if self._took_s is None else f"; the last start took {self._took_s:.1f} s"
        return f"it is started again {when}{took}"


# -- What the operating system says about a process: what it has done, and whether it could go on now.

RUNNABLE, ON_DISK, STOPPED = b"R", b"D", b"T"


class Activity(NamedTuple):
    """What the threads of a process have done so far, and what they are at; all nothing where nobody knows.

    The system counts a wait for a core when the thread gets one. Of a thread that gets none, only its state
    tells that it waits.
    """

    ran_s: float = 0.0
    waited_s: float = 0.0
    is_runnable: bool = False
    """A thread runs, or would if it had a core."""
    is_on_disk: bool = False
    """A thread waits for a disk, or something else that nobody can interrupt."""


def activity_of(pid: int) -> Activity:
    """Return what the threads of a process have done, and what they are at."""
    ran_ns, waited_ns, states = 0, 0, set()
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return Activity()
    for thread in threads:
        try:
            ran, waited, _ = _read(f"{folder}/{thread}/schedstat").split()
            states.add(_state(_read(f"{folder}/{thread}/stat")))
        except (OSError, ValueError):
            continue  # the thread has ended
        ran_ns += int(ran)
        waited_ns += int(waited)
    return Activity(ran_ns / 1e9, waited_ns / 1e9, RUNNABLE in states, ON_DISK in states)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (SIGSTOP), so that it does nothing until it is continued."""
    try:
        return _state(_read(f"/proc/{pid}/stat")) == STOPPED
    except OSError:
        return False


def _read(path: str) -> bytes:
    """Read a small file of the system, without the cost of a file object: there are two for each thread."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def _state(stat: bytes) -> bytes:
    """Return the letter that stands for a state, after the name in brackets, which may hold anything."""
    return stat.rpartition(b")")[2].split()[0]


# -- The heartbeat: asks every server for a sign of life, and names those that give none.
#
# An engine beats four times per second. Each beat sends `Ping` to every server, and a server's event loop
# answers `Pong`. Batches, models that load and sensors run in threads beside that loop, so a busy server
# answers too. Any bytes from a server count, so a large message that takes long does not look like silence.
#
# Silence is counted in beats and not in seconds: if the gateway itself was held up, it has missed beats and
# not answers, and it blames nobody for that.
#
# A server may be silent and not hang, so the operating system is asked at each silent beat:
#
# * One that does nothing at all, because it sleeps or is stopped, is suspected after `SILENT_BEATS`.
# * Code that keeps Python's lock for long can keep a server from answering although it works. A server that
#   works, or waits for a disk, is suspected after `BUSY_BEATS`.
# * A server that could run and gets no core is not to blame, however long that takes. Of a beat in which it
#   had a core for a tenth, a tenth counts.

BEAT_S = 0.25
SILENT_BEATS = 5
"""A server that does nothing and is silent for this many beats is suspected: after 1.25 to 1.5 s."""

BUSY_BEATS = 120
"""A server that works, but is silent for this many beats, is suspected: after 30 s with a core."""

BUSY_SHARE = 0.1
"""A server counts as working in a beat if it ran, or waited for a core, for this share of it."""

Look = Callable[[int], Activity]
"""Says what the process of a server does."""


class OwnBeats:
    """Counts the beats that a process has had for itself: all, less those in which it got no core."""

    def __init__(self) -> None:
        self.beats = 0.0
        self.waited_beats = 0.0
        """The beats, or parts of beats, for which it could have run and got no core."""
        self.still_beats = 0
        """The last beats in a row in which it did nothing."""
        self._last: Activity | None = None

    def count(self, now: Activity) -> None:
        """Count one beat, at the end of which the process does this."""
        last, self._last = self._last or now, now
        ran_s, waited_s = now.ran_s - last.ran_s, now.waited_s - last.waited_s
        is_first = last is now  # how much it ran before is not known
        share = 1.0 if is_first or not now.is_runnable else min(1.0, max(0.0, ran_s / BEAT_S))
        self.beats += share
        self.waited_beats += 1.0 - share
        is_active = now.is_runnable or now.is_on_disk or ran_s + waited_s >= BUSY_SHARE * BEAT_S
        self.still_beats = 0 if is_active else self.still_beats + 1


class Heartbeat:
    """Counts how long servers have been silent; `look` says what the process of a server does."""

    def __init__(self, look: Look = lambda server: Activity()) -> None:
        self._look = look
        self._silent: dict[FrameConnection, OwnBeats] = {}
        self.core_waits_s: dict[int, float] = {}
        """For how long each silent server has got no core since it was last heard."""

    def beat(self, connections: Mapping[int, FrameConnection]) -> list[int]:
        """Ask every server for a sign of life; return those that have given none for too long."""
        silent: dict[FrameConnection, OwnBeats] = {}
        self.core_waits_s, suspected = {}, []
        for server, connection in connections.items():
            if not connection.spoke_since():
                own = silent[connection] = self._silent.get(connection) or OwnBeats()
                own.count(self._look(server))
                self.core_waits_s[server] = own.waited_beats * BEAT_S
                if own.still_beats >= SILENT_BEATS or own.beats >= BUSY_BEATS:
                    suspected.append(server)
            connection.send(Ping())
        self._silent = silent
        return suspected


class StartLimit:
    """Counts how long starts take; time in which a starting process gets no core does not count."""

    def __init__(self, limit_s: float, look: Look) -> None:
        self._limit_beats, self._look = limit_s / BEAT_S, look
        self._own: dict[int, OwnBeats] = {}
        self.core_waits_s: dict[int, float] = {}
        """For how long those have got no core that would be late without that."""

    def beat(self, starting: Collection[int]) -> list[int]:
        """Count a beat for each server that starts; return those that take too long."""
        for server in starting:
            self._own.setdefault(server, OwnBeats()).count(self._look(server))
        overdue = {
            server: own
            for server in starting
            if (own := self._own[server]).beats + own.waited_beats > self._limit_beats
        }
        self.core_waits_s = {server: own.waited_beats * BEAT_S for server, own in overdue.items()}
        return [server for server, own in overdue.items() if own.beats > self._limit_beats]

    def forget(self, server: int) -> None:
        """A start is over: the next one counts from its beginning."""
        self._own.pop(server, None)


# -- Core waits: says when a process is silent or late because the machine is full, and when that is over.

FULL_S = 5.0
"""A silent process that has waited this long for a core is worth a line in the log."""


class CoreWaits:
    """Says once in the log that a process waits for a core, and once that it no longer does."""

    def __init__(self, log: logging.Logger, name: Callable[[int], str]) -> None:
        self._log, self._name = log, name
        self._waiting: dict[int, float] = {}  # seconds by process

    @property
    def waiting(self) -> Collection[int]:
        """Those that wait now."""
        return self._waiting.keys()

    def update(self, waits_s: Mapping[int, float]) -> bool:
        """Note how long processes have got no core; return whether others wait than before."""
        before, now = self._waiting, {one: wait_s for one, wait_s in waits_s.items() if wait_s >= FULL_S}
        self._waiting = now
        for one in now.keys() - before.keys():
            text = "%s has waited %.0f s for a core: this machine is full (%s); it is not ended"
            self._log.warning(text, self._name(one), now[one], load_words())
        for one in before.keys() - now.keys():
            self._log.info("%s waits for a core no longer, after %.0f s", self._name(one), before[one])
        return now.keys() != before.keys()


def load_words() -> str:
    """Say how many threads want how many cores."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


# -- The event logs of one live run, of the gateway and of its servers.
#
# Each process writes its own file in the run's folder: the gateway `events.jsonl.gz`, a server
# `events-server-0.jsonl.gz`, and the same server after a restart `events-server-0#2.jsonl.gz`.

PERIOD_S = 1.0
"""How often logs are written to disk."""


class RunLog:
    """An observer that writes the gateway's log, and tells each server where to write its own.

    The gateway may use half of the size limit; the servers share the other half.
    """

    def __init__(
        self, folder: Path, setting: RunSetting, servers: int, *, limit_bytes: int | None = None
    ) -> None:
        self._folder, self._header = folder, setting.header()
        half = None if limit_bytes is None else limit_bytes // 2
        self._server_limit_bytes = 0 if half is None else max(1, half // max(1, servers))
        self._writer = LogWriter(log_path(folder), self._header, limit_bytes=half)
        self._said = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_full(self) -> bool:
        """Whether the gateway's log reached its limit."""
        return self._writer.is_full

    @property
    def size_bytes(self) -> int:
        """Bytes of the gateway's log on disk."""
        return self._writer.size_bytes

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Append one entry to the gateway's log."""
        self._writer.observe(now_s, machine, event, commands)

    def for_server(self, spec: ServerSpec) -> ServerSpec:
        """Return the spec of a server that writes its own log beside the gateway's."""
        return replace(
            spec,
            log=str(self._folder),
            log_header=self._header,
            log_limit_bytes=self._server_limit_bytes,
        )

    async def keep(self, make_room: Callable[[], None] = lambda: None) -> None:
        """Every second, write the log to disk and make room; report once when the log is full."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self._writer.flush()
            make_room()
            if self.is_full and not self._said:
                self._said = True
                logging.getLogger("slim.log").warning(
                    "the gateway's event log stops: %s; raise --log-limit to keep more", self._writer.trouble
                )

    def close(self) -> None:
        """Close the gateway's log; servers close theirs when they stop."""
        self._writer.close()


def open_server_log(spec: ServerSpec) -> LogWriter | None:
    """Open the log of a server process; its limit includes the logs from before restarts."""
    if not spec.log or spec.log_header is None:
        return None
    lives = [log_path(Path(spec.log), life_name(spec.name, life)) for life in range(1, spec.life + 1)]
    limit_bytes = None
    if spec.log_limit_bytes:
        limit_bytes = spec.log_limit_bytes - sum(path.stat().st_size for path in lives if path.exists())
        if limit_bytes <= 0:
            return None
    writer = LogWriter(lives[-1], spec.log_header, limit_bytes=limit_bytes)
    writer.flush()  # a process that is killed at once leaves a log that can be read
    return writer


async def keep_server_log(writer: LogWriter, server: str) -> None:
    """Every second, write a server's log to disk; report once when it is full."""
    while not writer.is_full:
        await asyncio.sleep(PERIOD_S)
        writer.flush()
    logging.getLogger("slim.log").warning("the event log of %s stops: %s", server, writer.trouble)


log = logging.getLogger("slim.engine")

START_LIMIT_S = 120.0
"""How long a server may take from its start until it is ready, beside its waits for a core."""

STOP_LIMIT_S = 3.0
"""How long servers that have no work left may take to end when the engine stops."""

LEAVE_LIMIT_S = 30.0
"""How long a single server that was told to leave may take to finish its work."""

LOOK_S = 0.01
SERVER = "slimsched.serving.live.server_main"
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
