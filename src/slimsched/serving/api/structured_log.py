"""Structured logs: one JSON object per line, and an observer that logs what happens to the cluster."""

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from slimsched.serving.gateway.goal import format_goals
from slimsched.serving.gateway.messages import GoalChanged, ServerDown, ServerUp

FORMATS = ("text", "json")
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Writes time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up(form: str, level: str) -> None:
    """Send logs to standard error, as text or as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)


class ClusterLog:
    """Logs one line when a server comes up, when it goes down, and when the goal changes."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._log = names, logging.getLogger("slim.cluster")
        self._up: set[int] = set()

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Look at one entry of the event log."""
        if isinstance(event, ServerUp):
            self._up.add(event.server)
            self._tell(logging.INFO, event.server, "up")
        elif isinstance(event, ServerDown) and event.server in self._up:
            self._up.discard(event.server)
            self._tell(logging.WARNING, event.server, "down; its work starts again elsewhere")
        elif isinstance(event, GoalChanged):
            goal = format_goals(event.goal)
            self._log.info("the goal is now: %s", goal, extra={"goal": goal})

    def _tell(self, level: int, server: int, what: str) -> None:
        name = self._names[server]
        self._log.log(level, "server %s is %s", name, what, extra={"server": name})
