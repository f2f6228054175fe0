"""How long the event loops of a server's processes ran and waited for a core, sampled beside a run."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from data_plane import processes
from served_log import Table

LOOK_S = 0.05
KINDS = ("gateway", "fronts", "servers")
THROTTLED = Path("/sys/fs/cgroup/cpu.stat")


class Activity:
    """Samples the main thread of each process every `LOOK_S`, in a thread of its own."""

    def __init__(self, root: int) -> None:
        self._numbers = sorted(processes(root).items())
        self._rows: list[tuple[float, ...]] = []
        self._ended = threading.Event()

    def __enter__(self) -> "Activity":
        self._throttled = throttled()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        after = throttled()
        self.throttled = {name: after[name] - before for name, before in self._throttled.items()}

    def table(self) -> Table:
        """Return one row for each look at each thread; times are the machine's."""
        names = ("at_s", "process", "kind", "ran_us", "waited_us")
        values = np.array(self._rows, dtype=float).reshape(len(self._rows), len(names))
        return {
            name: value if name == "at_s" else value.astype(np.int64)
            for name, value in zip(names, values.T, strict=True)
        }

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for number, kind in self._numbers:
                with suppress(OSError):  # it has ended
                    times_us = thread_times(number)
                    self._rows.append((time.perf_counter(), number, KINDS.index(kind), *times_us))


def thread_times(number: int) -> tuple[float, float]:
    """Return how long a process's main thread has run, and waited for a core (0 if nobody counts that)."""
    task = Path(f"/proc/{number}/task/{number}")
    try:
        ran_ns, waited_ns, _ = map(int, (task / "schedstat").read_text().split())
        return ran_ns / 1e3, waited_ns / 1e3
    except (OSError, ValueError):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e4, 0.0


def throttled() -> dict[str, int]:
    """Return how often and how long the system made this group of processes rest, where it says so."""
    try:
        pairs = [line.split() for line in THROTTLED.read_text().splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value in pairs if "throttled" in name}
