"""Replay: gives a log's events to fresh state machines and compares their commands with the log's."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

from slimsched.kernel.errors import DataError
from slimsched.kernel.log import Entry


class Machine(Protocol):
    """A pure state machine: an event and a time go in, commands come out."""

    def handle(self, event: Any, *, now_s: float) -> Sequence[Struct]:
        """Take one event into account and return what must now be done."""
        ...


class Replayable(NamedTuple):
    """A fresh state machine, and the types of its events and commands."""

    machine: Machine
    event: Any
    command: Any = Any


class Difference(Struct, frozen=True, kw_only=True):
    """The first entry for which a fresh machine returned other commands."""

    number: int
    now_s: float
    machine: str
    event: Any
    logged: Any
    replayed: Any


class Replayed(Struct, frozen=True, kw_only=True):
    """How many entries, commands and machines were compared, and the first difference if there is one."""

    entries: int
    commands: int
    machines: int
    difference: Difference | None


def replay(entries: Iterable[Entry], make: Callable[[str], Replayable]) -> Replayed:
    """Give every entry to its machine, which `make` makes by name, until commands differ."""
    machines: dict[str, tuple[Machine, msgspec.json.Decoder[Any], Any]] = {}
    encoder = msgspec.json.Encoder()
    count = commands = 0
    difference = None
    for count, entry in enumerate(entries, start=1):
        if entry.machine not in machines:
            fresh = make(entry.machine)
            machines[entry.machine] = fresh.machine, msgspec.json.Decoder(fresh.event), fresh.command
        machine, decoder, command = machines[entry.machine]
        try:
            event = decoder.decode(entry.event)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"entry {count}: {entry.machine} knows no such event: {error}") from None
        try:
            asked = machine.handle(event, now_s=entry.now_s)
        except Exception as error:  # a machine trusts its driver; a log may be damaged or out of order
            raise DataError(
                f"entry {count}: {entry.machine} cannot take {type(event).__name__} here "
                f"({type(error).__name__}: {error}); the log is damaged or out of order"
            ) from error
        commands += len(asked)
        if difference := _difference(count, entry, encoder.encode(asked), command):
            break
    return Replayed(entries=count, commands=commands, machines=len(machines), difference=difference)


def _difference(number: int, entry: Entry, asked: bytes, command: Any) -> Difference | None:
    """Compare the commands of one entry: first by their bytes, then, if these differ, by their values.

    Compared as values, commands of an older log have what they lack of today's fields by default.
    """
    if asked == bytes(entry.commands) or _commands(entry.commands, command) == _commands(asked, command):
        return None
    logged, replayed = msgspec.json.decode(entry.commands), msgspec.json.decode(asked)
    event = msgspec.json.decode(entry.event)
    return Difference(
        number=number,
        now_s=entry.now_s,
        machine=entry.machine,
        event=event,
        logged=logged,
        replayed=replayed,
    )


def _commands(encoded: bytes | Raw, command: Any) -> Any:
    try:
        return msgspec.json.decode(encoded, type=list[command])
    except msgspec.ValidationError:  # commands that this machine does not give
        return msgspec.json.decode(encoded)
