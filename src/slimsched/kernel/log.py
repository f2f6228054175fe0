"""The event log: every event and command of every state machine, enough to replay each decision.

A log is a text file of JSON lines. The first line is the header: what was run. Each further line is an
entry, `[time, machine, event, commands]`. The last line says how the log ended; it is missing when the
process was killed. A path that ends in .gz is compressed. The same run gives the same bytes.

One process writes one file. A run folder holds the files of all its processes: `events.jsonl.gz` for the
driver, `events-server-0.jsonl.gz` for a server process.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from msgspec import Raw, Struct

from slimsched.kernel.errors import DataError
from slimsched.kernel.quantity import Finite, Whole
from slimsched.kernel.section import UNREADABLE

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
                self.ending = _ending(line)
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


def _ending(line: bytes) -> Ending | None:
    try:
        return msgspec.json.decode(line, type=Ending)
    except msgspec.DecodeError:
        return None
