"""The event log: append-only, one line an entry, enough to replay every decision.

The first line is the header (what was run), each further line [time, machine, event, commands]. A path
ending in .gz is compressed. Same seed, same bytes.
"""

import gzip
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import DataError
from slimsched.serving.routing import commands as routing_commands
from slimsched.serving.routing import events as routing_events
from slimsched.serving.scheduling import commands as scheduling_commands
from slimsched.serving.scheduling import events as scheduling_events

AnyEvent = routing_events.Event | scheduling_events.Event
AnyCommand = routing_commands.Command | scheduling_commands.Command


class Header(Struct, frozen=True, kw_only=True):
    """What was run: the scenario file as read, where its neighbours lie, the router and the seed."""

    slim: str
    scenario: dict[str, Any]
    beside: str
    router: str
    seed: int


class Entry(Struct, frozen=True, array_like=True):
    """One event a machine was given, and what it asked for."""

    now_s: float
    machine: str
    event: AnyEvent
    commands: list[AnyCommand]


class LogWriter:
    """An observer that writes everything down."""

    def __init__(self, path: Path, header: Header) -> None:
        self._raw = path.open("wb")
        self._file: BufferedIOBase = self._raw
        if path.suffix == ".gz":  # neither name nor time in its head: same run, same bytes
            self._file = gzip.GzipFile("", "wb", compresslevel=1, fileobj=self._raw, mtime=0)
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._line(header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.write(self._buffer)
        self._file.close()
        self._raw.close()

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Append one entry."""
        self._line((now_s, machine, event, commands))

    def _line(self, value: object) -> None:
        self._buffer += self._encoder.encode(value) + b"\n"
        if len(self._buffer) > 1 << 20:
            self._file.write(self._buffer)
            self._buffer.clear()


def read_log(path: Path) -> tuple[Header, Iterator[Entry]]:
    """The header and, one by one, the entries."""
    if not path.is_file():
        raise DataError(f"no event log at {path}; write one with slim simulate --log FILE")
    lines = _lines(path)
    try:
        header = msgspec.json.decode(next(lines), type=Header)
    except (msgspec.DecodeError, StopIteration, OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} is not an event log: {error}") from None
    return header, _entries(path, lines)


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield from file


def _entries(path: Path, lines: Iterator[bytes]) -> Iterator[Entry]:
    decoder = msgspec.json.Decoder(Entry)
    number = 1
    try:
        for number, line in enumerate(lines, start=2):  # noqa: B007
            yield decoder.decode(line)
    except (msgspec.DecodeError, OSError, EOFError) as error:
        raise DataError(f"{path.name}, after line {number}: damaged entry: {error}") from None
