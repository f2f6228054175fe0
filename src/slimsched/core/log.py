"""The event log: every event and command of every state machine, enough to replay each decision.

A log is a text file of JSON lines. The first line is the header: what was run. Each further line is an
entry, `[time, machine, event, commands]`. The last line says how the log ended; it is missing when the
process was killed. A path that ends in .gz is compressed. The same run gives the same bytes.

One process writes one file. A run folder holds the files of all its processes: `events.jsonl.gz` for the
driver, `events-server-0.jsonl.gz` for a server process.

Observers see every entry as it happens; replay gives a log's events to fresh state machines and compares
their commands with the log's.
"""

import gzip
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec
from msgspec import Raw, Struct

from slimsched.core.config import UNREADABLE, DataError, Finite, Whole


class Observer(Protocol):
    """Follows the entries of the log; it never changes them."""

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry."""


EVENTS = "events.jsonl.gz"
FLUSH_BYTES = 1 << 18


def log_path(folder: Path, process: str = "") -> Path:
    """Return where a process writes its log: the driver to EVENTS, others to a file with their name."""
    return folder / (f"events-{process.replace('/', '_')}.jsonl.gz" if process else EVENTS)


class Header(Struct, frozen=True, kw_only=True):
    """What was run: the kind of run, and the setting from which its state machines can be made again."""

    slim: str
    kind: Literal["serving", "jobs"]
    setting: dict[str, Any]


class Entry(Struct, frozen=True, array_like=True):
    """One event that a state machine was given, and the commands it returned; both still encoded."""

    now_s: Finite
    machine: str
    event: Raw
    commands: Raw


class Ending(Struct, frozen=True, kw_only=True):
    """The last line: whether the log is complete, or stopped at its size limit."""

    ended: Literal["closed", "full"]
    entries: Whole


class LogWriter:
    """An observer that writes every entry to a file, up to a size limit."""

    def __init__(self, path: Path, header: Header, *, limit_bytes: int | None = None) -> None:
        try:
            self._raw = path.open("wb")
        except OSError as error:
            raise DataError(f"cannot write a log to {path}: {error.strerror}; choose another place") from None
        self._file: BufferedIOBase = self._raw
        if path.suffix == ".gz":  # no name or time in its header: the same run gives the same bytes
            self._file = gzip.GzipFile("", "wb", compresslevel=1, fileobj=self._raw, mtime=0)
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes
        self._entries = 0
        self.is_full = False
        """Whether writing has stopped, because the size limit was reached or the disk is full."""
        self.trouble = ""
        """Why writing has stopped."""
        self._line(header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Append one entry."""
        if not self.is_full:
            self._entries += 1
            self._line((now_s, machine, event, commands))

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._raw.tell()

    def flush(self) -> None:
        """Write all entries so far to disk, so that they survive if this process is killed."""
        if self._raw.closed or self.is_full or not self._buffer:
            return
        self._write()
        if not self.is_full:
            self._attempt(self._file.flush)

    def close(self) -> None:
        """Write the last line and close the file; a second call does nothing."""
        if self._raw.closed:
            return
        self._buffer += self._encoder.encode(
            Ending(ended="full" if self.is_full else "closed", entries=self._entries)
        )
        self._buffer += b"\n"
        self._attempt(self._end)
        self._raw.close()

    def _end(self) -> None:
        self._file.write(self._buffer)
        self._file.close()

    def _line(self, value: object) -> None:
        self._buffer += self._encoder.encode(value) + b"\n"
        if len(self._buffer) > FLUSH_BYTES:
            self._write()

    def _write(self) -> None:
        self._attempt(lambda: self._file.write(self._buffer))
        self._buffer.clear()
        if self._limit_bytes is not None and not self.is_full and self._raw.tell() >= self._limit_bytes:
            self.is_full = True
            self.trouble = f"it has reached its limit of {self._limit_bytes:,} bytes"

    def _attempt(self, work: Callable[[], object]) -> None:
        """Write. If the disk is full, a log with a size limit stops; without a limit it is an error."""
        try:
            work()
        except OSError as error:
            if self._limit_bytes is None:
                raise DataError(f"cannot write the log: {error.strerror}; make room on the disk") from None
            self.is_full, self.trouble = True, f"cannot write it: {error.strerror}"


class Log:
    """Reads a log: the header at once, the entries one by one, then how it ended."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"no event log at {path}; slim simulate --out FOLDER leaves one")
        self.path = path
        self.ending: Ending | None = None
        """How the log ended, once all entries are read; None if its process was killed."""
        self._lines = _lines(path)
        try:
            self.header = msgspec.json.decode(next(self._lines), type=Header)
        except (*UNREADABLE, StopIteration, zlib.error) as error:
            raise DataError(f"{path.name} is not an event log: {str(error) or 'it is empty'}") from None

    def entries(self) -> Iterator[Entry]:
        """Read the entries one by one; an incomplete last line is left out."""
        decoder, number = msgspec.json.Decoder(Entry), 1
        lines = self._lines
        while True:
            try:
                line = next(lines)
            except (StopIteration, EOFError):  # the end, or a compressed file whose writer was killed
                return
            except (OSError, zlib.error) as error:
                raise DataError(f"{self.path.name}, after line {number}: damaged: {error}") from None
            number += 1
            if line.startswith(b"{"):
                with suppress(msgspec.DecodeError):
                    self.ending = msgspec.json.decode(line, type=Ending)
                return
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise DataError(f"{self.path.name}, line {number}: damaged entry: {error}") from None


def find_logs(path: Path) -> list[Path]:
    """List the logs in a run folder and its sub-folders; a file gives itself."""
    if path.is_file():
        return [path]
    logs = sorted(path.rglob("events*.jsonl*"))
    if not logs:
        where = f"in {path}" if path.is_dir() else f"at {path}"
        raise DataError(f"no event log {where}; slim simulate --out FOLDER leaves one")
    return logs


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield from file


STARTED = "%Y%m%dT%H%M%SZ"


class LogFolder:
    """A folder of logged runs, one sub-folder per start, with a size limit.

    When room is needed, the oldest runs are removed first. The current run is never removed.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self.limit_bytes = folder, limit_bytes
        self.run = self._new_run()
        """The folder of the current run."""
        self.make_room()

    def make_room(self) -> None:
        """Remove the oldest runs until the total is within the limit.

        Runs are folders named by a start time that hold an event log. Nothing else is touched.
        """
        runs = [one for one in self._folder.iterdir() if one.is_dir() and (one == self.run or _is_run(one))]
        sizes = {run: _size_bytes(run) for run in runs}
        total_bytes = sum(sizes.values())
        for run in sorted(sizes, key=lambda one: one.name):
            if total_bytes <= self.limit_bytes:
                return
            if run != self.run:
                shutil.rmtree(run, ignore_errors=True)
                total_bytes -= sizes[run]

    def _new_run(self) -> Path:
        """Make the folder of a run that starts now; a second start in the same second gets a number."""
        started = datetime.now(UTC).strftime(STARTED)
        for number in range(1, 1000):
            run = self._folder / (started if number == 1 else f"{started}-{number:03}")
            try:
                run.mkdir(parents=True)
            except FileExistsError:
                if not self._folder.is_dir():
                    break
                continue
            except OSError as error:
                raise DataError(
                    f"cannot write logs to {self._folder}: {error.strerror}; choose another folder"
                ) from None
            return run
        raise DataError(f"cannot write logs to {self._folder}: it is no folder; choose another")


def _is_run(folder: Path) -> bool:
    try:
        datetime.strptime(folder.name[:16], STARTED).replace(tzinfo=UTC)
        return bool(find_logs(folder))
    except (ValueError, DataError):
        return False


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it was removed meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


class StateMachine(Protocol):
    """A pure state machine: an event and a time go in, commands come out."""

    def handle(self, event: Any, *, now_s: float) -> Sequence[Struct]:
        """Take one event into account and return what must now be done."""


class Replayable(NamedTuple):
    """A fresh state machine, and the types of its events and commands."""

    machine: StateMachine
    event: Any
    command: Any = Any


STORY_ENTRIES = 5
"""How many entries before the one that went wrong an error tells of."""


class Difference(Struct, frozen=True, kw_only=True):
    """The first entry for which a fresh machine returned other commands."""

    number: int
    now_s: float
    machine: str
    event: Any
    logged: Any
    replayed: Any
    story: str
    """What the machine was told just before."""


class Replayed(Struct, frozen=True, kw_only=True):
    """How many entries, commands and machines were compared, and the first difference if there is one."""

    entries: int
    commands: int
    machines: int
    difference: Difference | None


class _Machine:
    """A fresh machine, how to read its events and commands, and what it was told last."""

    def __init__(self, fresh: Replayable) -> None:
        self._machine, self.command = fresh.machine, fresh.command
        self._decoder = msgspec.json.Decoder(fresh.event)
        self.told: deque[tuple[int, Entry]] = deque(maxlen=STORY_ENTRIES)

    @property
    def story(self) -> str:
        """What the machine was told before, as text."""
        told = [
            f"{msgspec.json.decode(entry.event)['type']} at {entry.now_s:.6f} s (entry {number})"
            for number, entry in self.told
        ]
        return f"before it: {', '.join(told)}" if told else "before it: nothing"

    def handle(self, number: int, entry: Entry) -> Sequence[Struct]:
        """Give the machine an entry's event; raise DataError with the story if that cannot be."""
        try:
            event = self._decoder.decode(entry.event)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"entry {number}: {entry.machine} knows no such event: {error}") from None
        try:
            return self._machine.handle(event, now_s=entry.now_s)
        except Exception as error:  # a machine trusts its driver; a log may be damaged or out of order
            raise DataError(
                f"entry {number}: {entry.machine} cannot take {type(event).__name__} here "
                f"({type(error).__name__}: {error}); {self.story}; the log is damaged or out of order"
            ) from error


def replay(entries: Iterable[Entry], make: Callable[[str], Replayable]) -> Replayed:
    """Give every entry to its machine, which `make` makes by name, until commands differ."""
    machines: dict[str, _Machine] = {}
    encoder = msgspec.json.Encoder()
    count = commands = 0
    difference = None
    for count, entry in enumerate(entries, start=1):
        machine = machines.get(entry.machine)
        if machine is None:
            machine = machines[entry.machine] = _Machine(make(entry.machine))
        asked = machine.handle(count, entry)
        commands += len(asked)
        if difference := _difference(count, entry, encoder.encode(asked), machine):
            break
        machine.told.append((count, entry))
    return Replayed(entries=count, commands=commands, machines=len(machines), difference=difference)


def _difference(number: int, entry: Entry, asked: bytes, machine: _Machine) -> Difference | None:
    """Compare the commands of one entry: first by their bytes, then, if these differ, by their values.

    Compared as values, commands of an older log have what they lack of today's fields by default.
    """
    command = machine.command
    if asked == bytes(entry.commands) or _commands(entry.commands, command) == _commands(asked, command):
        return None
    return Difference(
        number=number,
        now_s=entry.now_s,
        machine=entry.machine,
        event=msgspec.json.decode(entry.event),
        logged=msgspec.json.decode(entry.commands),
        replayed=msgspec.json.decode(asked),
        story=machine.story,
    )


def _commands(encoded: bytes | Raw, command: Any) -> Any:
    try:
        return msgspec.json.decode(encoded, type=list[command])
    except msgspec.ValidationError:  # commands that this machine does not give
        return msgspec.json.decode(encoded)
