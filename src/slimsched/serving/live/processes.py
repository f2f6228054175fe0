"""Child processes, supervised: one mechanism for the servers of an engine and the fronts of a gateway.

From the bottom up: a process that is started without holding up the event loop (`ChildProcess`), the wait
before it is started again (`Restarts`), what the operating system says about it (`Activity`), how silence is
told from work and from waiting for a core (`Heartbeat`, `StartLimit`, `CoreWaits`), and the `Supervisor`,
which puts them together.
"""

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple

from msgspec import Struct

from slimsched.core.config import SlimError
from slimsched.serving.live.memory import SocketFolder
from slimsched.serving.live.wire import CANNOT_START, FrameConnection, Introduction, Ping, is_same

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


async def beat_forever(beat: Callable[[], None], log: logging.Logger) -> None:
    """Do this at every beat, also after one that failed."""
    while True:
        await asyncio.sleep(BEAT_S)
        try:
            beat()
        except Exception:
            log.exception("a heartbeat failed; the next one follows")


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

    def update(self, waits_s: Mapping[int, float]) -> None:
        """Note how long processes have got no core."""
        before, now = self._waiting, {one: wait_s for one, wait_s in waits_s.items() if wait_s >= FULL_S}
        self._waiting = now
        for one in now.keys() - before.keys():
            text = "%s has waited %.0f s for a core: this machine is full (%s); it is not ended"
            load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
            self._log.warning(text, self._name(one), now[one], load)
        for one in before.keys() - now.keys():
            self._log.info("%s waits for a core no longer, after %.0f s", self._name(one), before[one])


# -- The supervisor: one for the servers of an engine, one for the fronts of a gateway.

STOP_LIMIT_S = 3.0
"""How long processes that have no work left may take to end."""


class _Child:
    """One child: its present process, and what is known of those before."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        """Counts the processes, the present one included."""
        self.process: ChildProcess | None = None
        self.connection: FrameConnection | None = None
        """Set from when the process has called until it is gone."""
        self.began_s: float | None = None
        """When the process was started, as long as it is not ready."""
        self.is_ready = self.is_wanted = self.is_given_up = False
        self.why_ended = ""
        """Why the supervisor itself ended the process."""
        self.restarts = Restarts()
        self.task: asyncio.Task[None] | None = None


class Supervisor(ABC):
    """Keeps child processes running: starts them, knows who calls, ends those that hang, and starts again.

    A child's life: its process is started, with a spec that says who it is and a secret. It calls at the
    socket in `folder` and introduces itself. It is `ready` when the class that inherits says so. It is ended
    if it is silent for too long (see `Heartbeat`), takes too long to get ready (`StartLimit`), is stopped
    while it starts, or closes its connection and goes on. However it ends, the next process follows as
    `Restarts` says, until the child has to `leave`. Where starts fail again and again before all were ready
    for the first time, `start_first` raises; later the child is given up, which means that it is tried once
    a minute.
    """

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        *,
        module: str,
        messages: Any,
        start_limit_s: float,
        log: logging.Logger,
    ) -> None:
        """`kind` is the word for a child; they run `module`, and send `messages`."""
        self.folder, self.secret = SocketFolder(), secrets.token_hex(16)
        self.socket = str(self.folder.path / "gateway")
        self._kind, self._module, self._messages = kind, module, messages
        self._children = [_Child(name) for name in names]
        self._by_connection: dict[FrameConnection, int] = {}
        self._start_limit_s, self._log = start_limit_s, log
        self._heartbeat, self._start_limit = Heartbeat(self._look), StartLimit(start_limit_s, self._look)
        self._core_waits = CoreWaits(log, self._title)
        self._first: Sequence[int] = ()
        self._has_begun = False  # all that were started first were ready
        self._begun: asyncio.Future[None] | None = None
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None
        self._starting: set[asyncio.Task[ChildProcess]] = set()
        self.is_stopping = False

    @abstractmethod
    def process_of(self, child: int, life: int) -> tuple[bytes, Mapping[str, str]]:
        """Return what a process reads from its standard input, and what its environment has besides."""

    @abstractmethod
    def joined(self, child: int, connection: FrameConnection, message: Any) -> None:
        """A process of ours has called, and proved who it is."""

    @abstractmethod
    def received(self, child: int, message: Any) -> None:
        """A process has sent a message."""

    @abstractmethod
    def lost(self, child: int) -> None:
        """A process that had called is gone; another one is started in its place."""

    def given_up(self, child: int, reason: str, left: int) -> None:
        """Nobody should wait for a child; `left` others run or are being started."""
        return

    async def start_first(self, first: Sequence[int]) -> None:
        """Start these children and return when all are ready; raise why one of them never will be."""
        loop = asyncio.get_running_loop()
        self._first, self._begun = first, loop.create_future()
        self._server = await loop.create_unix_server(
            lambda: FrameConnection(self._messages, self._received, self._lost), self.socket
        )
        for child in first:
            self.begin(child)
        self._beating = asyncio.create_task(beat_forever(self._beat, self._log))
        self._look_whether_begun()
        await self._begun
        self._has_begun = True

    def begin(self, index: int) -> bool:
        """Begin to start a child; return False if its last process has not ended yet."""
        child = self._children[index]
        if self.is_stopping or (child.task is not None and not child.task.done()):
            return False
        child.is_wanted, child.is_given_up, child.restarts = True, False, Restarts()
        child.task = asyncio.create_task(self._supervise(index))
        return True

    def ready(self, index: int) -> None:
        """A child takes work from now on."""
        child = self._children[index]
        if child.began_s is None:
            return
        took_s, child.began_s = monotonic() - child.began_s, None
        child.is_ready, child.is_given_up = True, False
        self._start_limit.forget(index)
        child.restarts.ready(monotonic(), took_s)
        if child.life > 1:
            self._log.info("%s is back after %.1f s", self._title(index), took_s)
        self._look_whether_begun()

    def leave(self, index: int) -> None:
        """Start a child no more once its process has ended."""
        self._children[index].is_wanted = False

    def send(self, index: int, message: Struct) -> None:
        """Send without waiting; what is sent to a child that is gone is lost."""
        connection = self._children[index].connection
        if connection is not None:
            connection.send(message)

    def pid(self, index: int) -> int:
        """Return the process id of a child."""
        process = self._children[index].process
        assert process is not None, f"{self._title(index)} was never started"
        return process.pid

    def is_connected(self, index: int) -> bool:
        """Whether a child has called, and is not gone."""
        return self._children[index].connection is not None

    def is_up(self, index: int) -> bool:
        """Whether a child is connected, and need not leave."""
        return self.is_connected(index) and self._children[index].is_wanted

    @property
    def waiting(self) -> Collection[int]:
        """The children that are silent or late because they get no core: the machine is full."""
        return self._core_waits.waiting

    def kill(self, index: int) -> None:
        """Kill a child's process at once; it is started again."""
        if (process := self._children[index].process) is not None:
            process.kill()

    def end_later(self, index: int, limit_s: float, why: str) -> None:
        """Kill a child's process if it still runs after this time."""
        child = self._children[index]
        life = child.life

        def end() -> None:
            if life == child.life and not self.is_stopping:
                self._end(index, why)

        asyncio.get_running_loop().call_later(limit_s, end)

    async def stop_all(self, farewell: Struct | None, within_s: float = STOP_LIMIT_S) -> None:
        """Send every child a last message and let it end within this time; without one, kill them at once."""
        self.is_stopping = True
        if self._starting:
            await asyncio.wait(self._starting)  # so that none is overlooked
        if farewell is not None:
            called = [child for child in self._children if child.connection is not None]
            for child in called:
                assert child.connection is not None
                child.connection.send(farewell)
            await self._all_ended(called, within_s)
        self._kill_all()
        await self._all_ended(self._children, STOP_LIMIT_S)
        self.end()

    def end(self) -> None:
        """Kill every child at once and clean up."""
        self.is_stopping = True
        self._kill_all()
        for task in (self._beating, *(child.task for child in self._children)):
            if task is not None:
                task.cancel()
        if self._server is not None:
            self._server.close()
        self.folder.remove()

    def _kill_all(self) -> None:
        for index in range(len(self._children)):
            self.kill(index)

    async def _all_ended(self, children: Sequence[_Child], limit_s: float) -> None:
        processes = [child.process for child in children if child.process is not None]
        if waiting := [asyncio.ensure_future(process.wait()) for process in processes]:
            await asyncio.wait(waiting, timeout=limit_s)

    def _title(self, index: int) -> str:
        return f"{self._kind} {self._children[index].name}"

    def _look(self, index: int) -> Activity:
        return activity_of(self.pid(index))

    def _look_whether_begun(self) -> None:
        assert self._begun is not None
        if not self._begun.done() and all(self._children[index].is_ready for index in self._first):
            self._begun.set_result(None)

    def _fail(self, why: str) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(SlimError(why))

    def _beat(self) -> None:
        """End children that hang: those that do not answer, and those that do not get ready."""
        connections = {index: connection for connection, index in self._by_connection.items()}
        for index in self._heartbeat.beat(connections):
            self._end(index, "it did not answer")
        starting = [index for index, child in enumerate(self._children) if child.began_s is not None]
        late = self._start_limit.beat(starting)
        self._core_waits.update({**self._heartbeat.core_waits_s, **self._start_limit.core_waits_s})
        for index in late:
            why = f"it was not ready after {self._start_limit_s:g} s"
            self._end(index, why)
            if not self._has_begun:
                self._fail(f"{self._title(index)} was ended: {why}; see its messages above")
        for index in starting:
            if is_stopped(self.pid(index)):
                self._end(index, "it was stopped while it started")

    def _end(self, index: int, why: str) -> None:
        """Take a child's work back and kill its process; SIGKILL ends a stopped process too."""
        child = self._children[index]
        if child.process is None or child.process.has_ended:
            return
        child.why_ended = why
        if child.connection is not None:
            child.connection.abort()  # what it still sends, if it wakes, reaches nobody
        self._gone(index)
        child.process.kill()

    async def _supervise(self, index: int) -> None:
        """Keep one child running until it must leave."""
        child = self._children[index]
        while not self.is_stopping and child.is_wanted:
            child.life += 1
            starting = asyncio.create_task(self._start_process(index))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)
            process = await asyncio.shield(starting)
            code = await process.wait()
            if self.is_stopping:
                return
            child.began_s = None
            if self._has_begun:  # else all starts of a child together have this limit
                self._start_limit.forget(index)
            self._gone(index)
            if code == CANNOT_START and not self._has_begun:
                self._fail(f"{self._title(index)} cannot start; see its message above")
                return
            why, child.why_ended = child.why_ended or _ending(code), ""
            if not child.is_wanted:
                return
            wait_s = child.restarts.ended(monotonic())
            if child.restarts.is_given_up and not child.is_given_up:
                times = f"{child.name} ended {FAILED_STARTS} times before it was ready ({why})"
                if not self._has_begun:
                    self._fail(f"{times}; see its messages above")
                    return
                child.is_given_up, reason = True, f"{times} and was given up"
                self._log.error("%s %s", self._kind, reason)
                left = sum(one.is_wanted and not one.is_given_up for one in self._children)
                self.given_up(index, reason, left)
            self._log.warning("%s ended: %s; %s", self._title(index), why, child.restarts.outlook(wait_s))
            await asyncio.sleep(wait_s)

    async def _start_process(self, index: int) -> ChildProcess:
        child = self._children[index]
        spec, environment = self.process_of(index, child.life)
        environment, loop = {**os.environ, **environment}, asyncio.get_running_loop()
        process = await asyncio.to_thread(ChildProcess, self._module, environment, spec, loop)
        child.process, child.began_s = process, monotonic()
        if self.is_stopping:
            process.kill()
        return process

    def _received(self, connection: FrameConnection, message: Any) -> None:
        """Take a child's message; the first one says who it is, and proves it."""
        if (index := self._by_connection.get(connection)) is not None:
            self.received(index, message)
        elif isinstance(message, Introduction) and self._is_ours(message):
            if not self.is_stopping:
                self._children[message.index].connection = connection
                self._by_connection[connection] = message.index
                self.joined(message.index, connection, message)
        else:
            self._log.warning(
                "someone who is no %s of ours called at the gateway's socket; it is ignored", self._kind
            )
            connection.abort()

    def _is_ours(self, said: Introduction) -> bool:
        """Whether this comes from the child's present process: nobody else knows the secret."""
        if not is_same(said.secret, self.secret):
            return False
        child = self._children[said.index] if 0 <= said.index < len(self._children) else None
        return (
            child is not None
            and child.life == said.life
            and child.began_s is not None
            and child.connection is None
        )

    def _lost(self, connection: FrameConnection) -> None:
        """A connection is closed, so its process is gone."""
        if (index := self._by_connection.get(connection)) is not None:
            self._gone(index)
            self.end_later(index, STOP_LIMIT_S, "it closed its connection and did not end")

    def _gone(self, index: int) -> None:
        child = self._children[index]
        if (connection := child.connection) is not None:
            del self._by_connection[connection]
            child.connection, child.is_ready = None, False
            self.lost(index)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
