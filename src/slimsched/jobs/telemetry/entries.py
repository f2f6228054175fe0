"""The entries of a job run: when, what the scheduler was told, and what it asked for.

A simulation keeps them in memory; a log on disk holds the same. The folds in this folder read both.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from slimsched.jobs.scheduler.messages import LiveCommand, LiveEvent
from slimsched.kernel.errors import DataError
from slimsched.kernel.log import Entry
from slimsched.kernel.observer import Observer

SCHEDULER_NAME = "jobs"
"""The name of the one machine in the log of a job run."""

JobEntry = tuple[float, LiveEvent, Sequence[LiveCommand]]


def decode_entries(entries: Iterable[Entry]) -> Iterator[JobEntry]:
    """Read the entries of a log on disk."""
    events = msgspec.json.Decoder(LiveEvent)
    commands = msgspec.json.Decoder(list[LiveCommand])
    for number, entry in enumerate(entries, start=1):
        try:
            yield entry.now_s, events.decode(entry.event), commands.decode(entry.commands)
        except msgspec.DecodeError as error:
            raise DataError(f"entry {number} is not one of a job run: {error}") from None


def pass_on(entries: Iterable[JobEntry], observer: Observer) -> None:
    """Show entries to an observer, such as the writer of a log."""
    for now_s, event, commands in entries:
        observer.observe(now_s, SCHEDULER_NAME, event, commands)
