"""Watches the gateway under attack: its memory, its descriptors, its log and what its metrics count."""

import http.client
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from attacker import Board
from sanitized import LIMITS, Server

MIB = 2**20
GROWTH_MIB = 320
"""How much the gateway's memory may grow: all that limits let clients hold (64 MiB of requests, 32 MiB of
answers, what 1,024 calls and connections need), 16 MiB in the quarantine of the sanitizer, and its borders
around each block."""
KILL_MIB = 3 * 1024
"""Above this, the server is killed, so that an attack that works does not take the machine with it."""
MORE_DESCRIPTORS = int(LIMITS["connections"]) + 64
SPARE_DESCRIPTORS = 4
SETTLE_S = 5.0
EVERY_S = 0.05
MOST_RESTARTS = 8
INTERNAL = re.compile(
    r'^slim_responses_total\{[^}]*code="(500|INTERNAL|UNKNOWN|DATA_LOSS)"[^}]*\} (\S+)', re.M
)


@dataclass
class Faults:
    """What went wrong, how often, and the first example of it."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, example: str) -> None:
        """Count a fault; tell at once about the first of its kind."""
        self.counts[what] += 1
        if what not in self.examples:
            self.examples[what] = example
            print(f"FAULT {what}: {example}", flush=True)


class Watch:
    """Looks at a server until the attack is over; starts it again if it has died."""

    def __init__(self, server: Server, board: Board, faults: Faults, names: Callable[[], str]) -> None:
        self._server, self._board, self._faults, self._names = server, board, faults, names
        self.memory_mib: list[float] = []
        self.descriptors: list[int] = []
        self.start_mib, self.start_descriptors = 0.0, 0
        self._internal, self._log_at, self._reports, self._is_grown, self._is_open = 0.0, 0, 0, False, False
        self.restarts, self._killed_mib = 0, 0.0
        Thread(target=self._guard, daemon=True).start()

    def _guard(self) -> None:
        """Kill the server when it takes too much memory, whatever else is being looked at."""
        while True:
            if self._board.is_up.value and (memory_mib := self._rss_mib()) > KILL_MIB:
                self._killed_mib = memory_mib
                self._server.kill()
            time.sleep(0.02)

    def settle(self) -> None:
        """Note what the server has before the attack, or after it was started again."""
        self.start_mib, self.start_descriptors = self._rss_mib(), self._count_descriptors()
        self._internal, self._is_grown, self._is_open = 0.0, False, False

    def run(self, until_s: float) -> None:
        """Look until then."""
        next_page_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            self._drain_queue()
            if not self._look():
                self._start_again()
                if self.restarts > MOST_RESTARTS:
                    return
            elif time.monotonic() > next_page_s:
                self._look_at_metrics()
                self._look_at_log()
                next_page_s = time.monotonic() + 1.0
            time.sleep(EVERY_S)
        self._look_at_metrics()
        self._look_at_log()

    def settle_after(self) -> None:
        """Once nobody attacks any more, descriptors must come back to what they were."""
        self._drain_queue()
        until_s = time.monotonic() + SETTLE_S
        most = self.start_descriptors + SPARE_DESCRIPTORS
        while (count := self._count_descriptors()) > most and time.monotonic() < until_s:
            time.sleep(EVERY_S)
        self.descriptors.append(count)
        if count > most:
            self._faults.add(
                "descriptors stay",
                f"{count} are open {SETTLE_S:.0f} s after the end, {self.start_descriptors} at the start",
            )

    def end(self) -> None:
        """Stop the server, and look at what it left."""
        is_alive = self._server.process is not None and self._server.process.poll() is None
        code = self._server.stop()
        self._look_at_log()
        if code and is_alive:
            self._fault("bad end", f"the server ended with exit code {code} after SIGTERM")

    # -- one look

    def _look(self) -> bool:
        """Read memory and descriptors; false if the server is dead."""
        process = self._server.process
        assert process is not None
        if (code := process.poll()) is not None:
            how = f"killed here at {self._killed_mib:.0f} MiB" if self._killed_mib else f"exit code {code}"
            self._fault("server death", f"{how} while {self._names()} ran")
            self._killed_mib = 0.0
            return False
        self.memory_mib.append(self._rss_mib())
        self.descriptors.append(self._count_descriptors())
        grown_mib, opened = (
            self.memory_mib[-1] - self.start_mib,
            self.descriptors[-1] - self.start_descriptors,
        )
        if self.memory_mib[-1] > KILL_MIB:
            self._server.kill()
            self._fault(
                "server death", f"killed here at {self.memory_mib[-1]:.0f} MiB while {self._names()} ran"
            )
            return False
        if grown_mib > GROWTH_MIB and not self._is_grown:
            self._is_grown = True
            self._fault(
                "memory", f"grew by {grown_mib:.0f} MiB (at most {GROWTH_MIB}) while {self._names()} ran"
            )
        if opened > MORE_DESCRIPTORS and not self._is_open:
            self._is_open = True
            self._fault(
                "descriptors", f"{opened} more (at most {MORE_DESCRIPTORS}) while {self._names()} ran"
            )
        return True

    def _fault(self, what: str, example: str) -> None:
        self._faults.add(what, example)
        self._board.alarms.value += 1

    def _drain_queue(self) -> None:
        while not self._board.faults.empty():
            what, example = self._board.faults.get()
            if what == "unexpected failure":
                self._board.alarms.value += 1
            self._faults.add(
                what, f"{example} while {self._names()} ran" if not what.startswith("flood") else example
            )

    def _look_at_metrics(self) -> None:
        """Count the unexpected failures of the server as it counts them itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=20)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            internal = sum(float(value) for _, value in INTERNAL.findall(text))
            if internal > self._internal:
                self._fault(
                    "unexpected failure", f"{internal - self._internal:.0f} answers with 500 or INTERNAL"
                )
            self._internal = internal
        connection.close()

    def _look_at_log(self) -> None:
        text = self._server.log.read_text(errors="replace")
        new, self._log_at = text[self._log_at :], len(text)
        for part in new.split("Traceback")[1:]:
            self._fault("traceback", " ".join(part[:3000].split("\n\n")[0].split())[-300:])
        for part in re.findall(
            r"^.*(?:was never retrieved|never awaited|Exception ignored|Exception in callback).*$", new, re.M
        ):
            self._fault("traceback", part)
        reports = self._server.reports()
        for one in reports[self._reports :]:
            found = re.search(r"(ERROR: \w+Sanitizer.*|runtime error.*)", one.read_text(errors="replace"))
            self._fault("sanitizer report", f"{one}: {found[1] if found else '?'}")
        self._reports = len(reports)

    def _start_again(self) -> None:
        self._board.is_up.value = 0
        self._look_at_log()
        self.restarts += 1
        if self.restarts <= MOST_RESTARTS:
            try:
                self._server.start()
            except SystemExit as error:
                self._fault("server death", f"it did not start again: {error}")
                return
            self.settle()
            self._board.is_up.value = 1

    def _rss_mib(self) -> float:
        with suppress(OSError):
            return (
                int(Path(f"/proc/{self._server.pid}/statm").read_text().split()[1])
                * os.sysconf("SC_PAGE_SIZE")
                / MIB
            )
        return 0.0

    def _count_descriptors(self) -> int:
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self._server.pid}/fd"))
        return 0
