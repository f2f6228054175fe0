"""Starting a real `slim serve` on free ports."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from warm_start import warm_servers

Counted = TypeVar("Counted")

CONFIG = """
name = "two-cores"
accuracy = "measured"
[load]
rate_per_s = 10.0
seconds = 1.0
[link]
bandwidth_bytes_per_s = 2e9
latency_s = 0.0002
[gateway]
step_s = 0.002
[scheduler]
batch_limit = 16
vram_cap_bytes = 2_000_000_000
utilization_block = 1.01
[[server]]
name = "one"
device = "cpu-8-core"
host = { kind = "cpu" }
[[server]]
name = "two"
device = "cpu-8-core"
host = { kind = "cpu", speed = 0.5 }
"""


@dataclass
class Served:
    """A running server: its process, its ports and what it says."""

    process: subprocess.Popen[str]
    http: str
    grpc: str
    log: Path

    def stop(self, patience_s: float = 60.0) -> int:
        """Ask it to end; return its exit code, after printing what it said if something went wrong."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=patience_s)
        if code != 0:
            print(self.log.read_text())
        return code

    def metric(self, name: str, token: str = "") -> float:
        """Sum what its metrics page says under names that begin like this."""
        text = self.page("/metrics", authorization=f"Bearer {token}")
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}\S* (\S+)$", text, re.M))

    def page(self, path: str, **headers: str) -> str:
        """Return what it answers to a GET."""
        connection = http.client.HTTPConnection(self.http, timeout=30)
        connection.request("GET", path, headers=headers)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def children(self) -> list[int]:
        """Its server processes."""
        names = self.log.with_suffix(".servers")
        warm = [int(line) for line in names.read_text().split()] if names.exists() else []
        return self._running("live.server") + [pid for pid in warm if Path(f"/proc/{pid}").exists()]

    def fronts(self) -> list[int]:
        """Its front processes."""
        return self._running("fronts.front")

    def renew_fronts(self) -> None:
        """Kill its front processes, and wait until others have taken their places."""
        old = set(self.fronts())
        for victim in old:
            os.kill(victim, signal.SIGKILL)
        give_up_s = time.monotonic() + 60
        while old & set(self.fronts()) or len(self.fronts()) < len(old) or not self._is_ready():
            assert time.monotonic() < give_up_s, "the fronts did not come back"
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.http, timeout=30)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _running(self, module: str) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task")
        found = [pid for path in task.glob("*/children") for pid in path.read_text().split()]
        return [int(pid) for pid in found if module in Path(f"/proc/{pid}/cmdline").read_text()]


COLD = "from slimsched.cli.app import main; main()"
WARM = """
import sys
sys.path.insert(0, {folder!r})
import warm_start
sys.path.pop(0)
warm_start.lend({address!r}, {names!r})
"""


def serve(folder: Path, *options: str, warm: bool = True) -> Served:
    """Start `slim serve` and wait until it is ready; its servers are forked from a `warm` process."""
    config, log = folder / "two-cores.toml", folder / "serve.log"
    config.write_text(CONFIG)
    program = COLD
    if warm:
        names = log.with_suffix(".servers")
        names.unlink(missing_ok=True)
        where = {"folder": str(Path(__file__).parent), "address": warm_servers(), "names": str(names)}
        program = WARM.format(**where) + COLD
    command = [sys.executable, "-c", program, "serve"]
    options = options if "--config" in options else ("--config", str(config), *options)
    command += ["--http-port", "0", "--grpc-port", "0", *options]
    if "--fronts" not in options:
        command += ["--fronts", "0"]  # whatever the machine has
    with log.open("w") as out:
        environment = {**os.environ, "COLUMNS": "200"}
        process = subprocess.Popen(command, stderr=out, stdout=out, text=True, env=environment)
    give_up_s = time.monotonic() + 120
    while time.monotonic() < give_up_s and process.poll() is None:
        found = re.search(r"ready: https?://(\S+?)/v2.*gRPC at (\S+),", log.read_text())
        if found:
            return Served(process, found[1], found[2], log)
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"the server did not start: {log.read_text()}")


@contextmanager
def load(address: str) -> Iterator[None]:
    """Keep a server busy, four images at a time, until the block ends."""
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    head = (
        b'{"inputs":[{"name":"images","shape":[4,3,32,32],"datatype":"UINT8",'
        b'"parameters":{"binary_data_size":12288}}],"outputs":[{"name":"classes"}]}'
    )
    ended = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection(address, timeout=30)
        headers = {"inference-header-content-length": str(len(head))}
        while not ended.is_set():
            connection.request("POST", "/v2/models/slimresnet/infer", head + images.tobytes(), headers)
            connection.getresponse().read()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def settled(read: Callable[[], Counted]) -> Counted:
    """Read figures that processes report now and then, until they stay the same for half a second."""
    give_up_s, seen = time.monotonic() + 30, read()
    while time.monotonic() < give_up_s:
        time.sleep(0.5)
        seen, before = read(), seen
        if seen == before:
            return seen
    raise AssertionError(f"figures do not settle: {seen}")
