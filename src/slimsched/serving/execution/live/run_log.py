"""The event logs of one live run, of the gateway and of its servers.

Each process writes its own file in the run's folder: the gateway `events.jsonl.gz`, a server
`events-server-0.jsonl.gz`, and the same server after a restart `events-server-0#2.jsonl.gz`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.log import LogWriter, log_path
from slimsched.serving.domain.cluster import life_name
from slimsched.serving.execution.live.server_spec import ServerSpec
from slimsched.serving.scenario.files import RunSetting

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
