"""A server in a process of its own, for the length of a measurement."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SLIM = [sys.executable, "-c", "from slimsched.cli.app import main; main()"]
START_S = 240.0


MACHINE = "machine"
"""Instead of a scenario: what `slim serve` chooses by itself."""


def scenario_options(config: str) -> list[str]:
    """Return the options that name a scenario or a file of one; none for this machine."""
    return [] if config == MACHINE else ["--config" if config.endswith(".toml") else "--scenario", config]


def serve_command(config: str, fronts: int, port: int) -> list[str]:
    """Return the command that serves a scenario, or this machine, at this port and over gRPC at the next.

    On this machine the number of fronts is its own choice too.
    """
    ports = ["--http-port", str(port), "--grpc-port", str(port + 1)]
    given = [] if config == MACHINE else ["--fronts", str(fronts)]
    return [*SLIM, "serve", *scenario_options(config), *given, *ports]


@contextmanager
def running(
    command: list[str],
    ready: str | None,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[int]:
    """Run a server until the end of the block; yield its process id once `ready` answers, or at once."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder)
    try:
        if ready is not None:
            _wait(ready, process, log)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait(ready: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        try:
            with urllib.request.urlopen(ready, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"not ready after {START_S:.0f} s:\n{log.read_text()}")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
