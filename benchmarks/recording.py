"""A recording of a served run: what clients and event logs saw, so that it can be fitted and simulated again.

Each window of the run (the calibration, then each load) has tables of columns. Times are in seconds from the
start of the window, stored to the microsecond.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from open_loop import Seen
from served_log import Table

CALLS = ("due_s", "sent_s", "done_s", "status", "request", "inside_s", "client")

STILL_S = 0.003
"""A client looks at the clock every millisecond; a call that leaves this late shows that it did not."""


class Window(Struct):
    """One load of the run: what was asked, the live figures, and the tables."""

    load: float
    live: dict[str, Any]
    tables: dict[str, Table]


class Recording(Struct):
    """All windows of a run; the first is the calibration."""

    setting: dict[str, Any]
    windows: list[Window]

    def write(self, path: Path) -> None:
        """Write everything to one file."""
        arrays = {
            f"{number}/{name}/{column}": _packed(column, values)
            for number, window in enumerate(self.windows)
            for name, table in window.tables.items()
            for column, values in table.items()
        }
        head = {"setting": self.setting, "windows": [[one.load, one.live] for one in self.windows]}
        np.savez_compressed(path, head=np.array(json.dumps(head)), **arrays)

    @classmethod
    def read(cls, path: Path) -> "Recording":
        """Read a file that `write` wrote."""
        with np.load(path) as stored:
            head = json.loads(str(stored["head"]))
            windows = [Window(load, live, {}) for load, live in head["windows"]]
            for key in stored.files:
                if key != "head":
                    number, name, column = key.split("/")
                    table = windows[int(number)].tables.setdefault(name, {})
                    table[column] = _unpacked(column, stored[key])
        return cls(head["setting"], windows)


def calls_table(seen: list[Seen]) -> Table:
    """Return what the clients saw, in the order in which requests were due; times are the machine's."""
    clients = {zero_s: number for number, zero_s in enumerate(sorted({one.zero_s for one in seen}))}
    rows = [
        (
            *(one.zero_s + at_s for at_s in (one.due_s, one.sent_s, one.done_s)),
            *(one.status, one.request, one.inside_s, clients[one.zero_s]),
        )
        for one in seen
    ]
    rows.sort()
    values = np.array(rows, dtype=float).reshape(len(rows), len(CALLS))
    return {
        name: value if name.endswith("_s") else value.astype(np.int64)
        for name, value in zip(CALLS, values.T, strict=True)
    }


def log_zero_s(calls: Table, arrived: Table, done: Table) -> float:
    """Return the machine's time at which the log's clock began.

    Few calls came before they were sent, and few were answered after their client had the answer; what lies
    between is divided equally. Few, not none: on some machines the clock of one process is off by
    milliseconds for a while.
    """
    size = int(np.gcd.reduce(arrived["count"]))  # of a call
    first = dict(zip(arrived["request"].tolist(), arrived["arrival_s"].tolist(), strict=True))
    order = np.argsort(done["request"])
    numbers, at_s = done["request"][order], done["at_s"][order]
    sent, ended = [], []
    for number, sent_s, done_s in zip(
        *(calls[name].tolist() for name in ("request", "sent_s", "done_s")), strict=True
    ):
        if number < 0:
            continue
        if number in first:  # the first of its bundle
            sent.append(sent_s - first[number])
        begin = int(np.searchsorted(numbers, number, side="right")) - 1
        ended.append(done_s - at_s[begin : np.searchsorted(numbers, number + size)].max())
    return float(0.5 * (np.percentile(sent, 90) + np.percentile(ended, 1)))


def aligned(tables: dict[str, Table]) -> dict[str, Table]:
    """Return the tables of a window with the log's times on the clients' clock, whatever they were on."""
    off_s = log_zero_s(tables["calls"], tables["arrived"], tables["done"])
    return {
        name: table if name in ("calls", "full") else from_start(table, -off_s)
        for name, table in tables.items()
    }


def stood_still(calls: Table) -> NDArray[np.bool_]:
    """Say which calls were under way while their own client stood still, as when it opens connections.

    Calls that were due then left late, which shows when that was.
    """
    hit = np.zeros(len(calls["due_s"]), dtype=bool)
    for client in np.unique(calls["client"]):
        its = np.flatnonzero(calls["client"] == client)
        due_s, sent_s, done_s = (calls[name][its] for name in ("due_s", "sent_s", "done_s"))
        spans: list[list[float]] = []
        for place in np.flatnonzero(sent_s - due_s > STILL_S).tolist():  # in the order in which they were due
            if spans and due_s[place] <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], sent_s[place])
            else:
                spans.append([due_s[place], sent_s[place]])
        if spans:
            began_s, ended_s = np.array(spans).T
            next_one = np.minimum(np.searchsorted(ended_s, sent_s), len(spans) - 1)
            hit[its] = (ended_s[next_one] >= sent_s) & (began_s[next_one] <= done_s)
    return hit


def from_start(table: Table, start_s: float, *, relative: tuple[str, ...] = ()) -> Table:
    """Return a table whose times count from `start_s`; lengths of time stay."""
    lengths = ("busy_s", "queue_s", "inside_s", *relative)
    return {
        name: values - start_s if name.endswith("_s") and name not in lengths else values
        for name, values in table.items()
    }


def _packed(column: str, values: Any) -> Any:
    if column.endswith("_s"):
        return np.round(1e6 * np.asarray(values)).astype(np.int64).astype(np.int32)
    return values.astype(np.int32 if np.abs(values).max(initial=0) < 2**31 else np.int64)


def _unpacked(column: str, values: Any) -> Any:
    return 1e-6 * values if column.endswith("_s") else values
