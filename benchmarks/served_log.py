"""What the event logs of `slim serve` say about calls, messages and batches, as arrays.

Times are in seconds on the clock of the log. A path through the model is named by its place in `paths`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slimsched.kernel.log import Entry, Log, find_logs
from slimsched.models.spec import Path as ModelPath
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.examples import count_examples
from slimsched.serving.domain.machine import GATEWAY_NAME
from slimsched.serving.routing.commands import Answer, Drop, SendBlock
from slimsched.serving.routing.commands import Command as GatewayCommand
from slimsched.serving.routing.events import Event as GatewayEvent
from slimsched.serving.routing.events import RequestsArrived, SegmentFinished
from slimsched.serving.scheduling.commands import Command as SchedulerCommand
from slimsched.serving.scheduling.commands import RunBatch
from slimsched.serving.scheduling.events import BatchFinished, BlockArrived
from slimsched.serving.scheduling.events import Event as SchedulerEvent

Table = dict[str, NDArray[Any]]

COLUMNS = {
    "event": ("at_s", "kind", "requests", "examples", "sends"),  # each that the gateway handled
    "arrived": ("at_s", "request", "count", "arrival_s"),  # requests as the gateway got them
    "done": ("at_s", "request", "count", "path"),  # parts of requests; path -1: dropped
    "sent": ("at_s", "block", "server", "examples", "path"),
    "heard": ("at_s", "block", "server", "size", "finished_s", "busy_s", "queue_s"),
    "landed": ("at_s", "block", "server"),  # blocks that a server has got
    "batch": ("at_s", "block", "server", "size", "path", "ended_s", "busy_s"),  # began, by the server's log
}
"""Tables and their columns; `at_s` is when the entry was logged."""

KINDS = [kind.__name__ for kind in GatewayEvent.__args__]


class ServedLog:
    """Reads the logs of one run of a server."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        """`names` are those of the servers."""
        self.paths: list[ModelPath] = []
        self._names = names
        self._rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in COLUMNS}
        self._running: dict[tuple[int, int], tuple[float, ...]] = {}  # by server and instance
        event, commands = _decoder(GatewayEvent), _decoder(list[GatewayCommand])
        its_event, its_commands = _decoder(SchedulerEvent), _decoder(list[SchedulerCommand])
        for path in find_logs(folder):
            for entry in Log(path).entries():
                if entry.machine == GATEWAY_NAME:
                    self._gateway(entry.now_s, event(entry.event), commands(entry.commands))
                else:
                    self._server(entry, its_event(entry.event), its_commands(entry.commands))

    def between(self, began_s: float, ended_s: float) -> dict[str, Table]:
        """Return what was logged between two times."""
        return {name: _table(name, self._rows[name], began_s, ended_s) for name in COLUMNS}

    def _gateway(self, now_s: float, event: Any, commands: Any) -> None:
        requests = examples = sends = 0
        if isinstance(event, RequestsArrived):
            requests, examples = len(event.requests), count_examples(event.requests)
            for one in event.requests:
                self._rows["arrived"].append((now_s, one.id, one.count, one.arrival_s))
        elif isinstance(event, SegmentFinished):
            requests = sum([len(block.requests) for block in event.blocks])
            examples = event.examples
            waited_s = sum(event.queue_s) / len(event.queue_s)
            row = (event.blocks[0].id, event.server, event.size, event.finished_s, event.busy_s, waited_s)
            self._rows["heard"].append((now_s, *row))
        for command in commands:
            if isinstance(command, SendBlock):
                sends += 1
                block = command.block
                row = (block.id, command.server, block.examples, self._path(block))
                self._rows["sent"].append((now_s, *row))
            elif isinstance(command, Answer | Drop):
                for one in command.requests:
                    path = self._place(one.path) if isinstance(command, Answer) else -1
                    self._rows["done"].append((now_s, one.id, one.count, path))
        kind = KINDS.index(type(event).__name__)
        self._rows["event"].append((now_s, kind, requests, examples, sends))

    def _server(self, entry: Entry, event: Any, commands: Any) -> None:
        now_s, server = entry.now_s, self._names.index(entry.machine)
        if isinstance(event, BlockArrived):
            self._rows["landed"].append((now_s, event.block.id, server))
        elif isinstance(event, BatchFinished):
            began = self._running.pop((server, event.instance))
            self._rows["batch"].append((*began, now_s, event.busy_s))
        for command in commands:
            if isinstance(command, RunBatch):
                batch = command.batch
                row = (now_s, batch.blocks[0].id, server, batch.size, self._place(batch.key.choices))
                self._running[server, batch.instance] = row

    def _path(self, block: Block) -> int:
        return self._place((*block.requests[0].path, *block.key.choices))

    def _place(self, path: ModelPath) -> int:
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)


def _decoder(kind: Any) -> Callable[[Any], Any]:
    return msgspec.json.Decoder(kind).decode


def _table(name: str, rows: list[tuple[float, ...]], began_s: float, ended_s: float) -> Table:
    chosen = [row for row in rows if began_s <= row[0] < ended_s]
    values = np.array(chosen, dtype=float).reshape(len(chosen), len(COLUMNS[name]))
    return {
        column: value if column.endswith("_s") else value.astype(np.int64)
        for column, value in zip(COLUMNS[name], values.T, strict=True)
    }
