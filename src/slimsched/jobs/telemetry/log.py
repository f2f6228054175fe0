"""The log of a job scheduler: what it was told and what it asked for, in order."""

import msgspec

from slimsched.jobs.scheduling.commands import Command
from slimsched.jobs.scheduling.events import Event

JobLog = list[tuple[float, Event | Command]]


def encode(log: JobLog) -> bytes:
    """One JSON object a line: `now_s`, when it was said, then the event or command."""
    lines = []
    for now_s, entry in log:
        fields = msgspec.to_builtins(entry)
        lines.append(msgspec.json.encode({"now_s": now_s, **fields}))
    return b"\n".join(lines) + b"\n"
