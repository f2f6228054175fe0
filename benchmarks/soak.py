"""Ten minutes near capacity: is the memory of gateway and servers flat?

    python benchmarks/soak.py [--minutes 10] [--load 0.9] [--config FILE]

Starts `slim serve` on free ports and finds the rate it can hold at width 0.5 with requests of 8 images. Then
it sends the share `--load` of that rate in open loop and reads the resident memory of every process from
/proc. Memory is flat if each process uses at most 2 % more in the last third of the time than in the second.
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from running import MACHINE, resident_mib, scenario_options

from slimsched.cli.serving.scenario import test_examples
from slimsched.serving.api.client.load import (
    Inputs,
    LoadGenerator,
    LoadReport,
    Target,
    due_times,
    load_of,
    report,
)
from slimsched.serving.live.wire import run
from slimsched.serving.scenario.files import shipped_model

IMAGES = 8
TERMS = {"plan": "0.5"}
FLAT = 1.02
START_LIMIT_S = 120.0


class Server:
    """A running `slim serve` and the memory its processes take."""

    def __init__(self, config: str) -> None:
        command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", "serve"]
        command += [*scenario_options(config), "--http-port", "0", "--grpc-port", "0"]
        self._log = Path(tempfile.mkdtemp(prefix="slim-soak-")) / "serve.log"
        with self._log.open("w") as out:
            environment = {**os.environ, "COLUMNS": "200"}
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        give_up_s = time.monotonic() + START_LIMIT_S
        while (match := re.search(r"ready: (https?://[^/]+)/v2", self._log.read_text())) is None:
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                raise SystemExit(f"the server did not start:\n{self._log.read_text()}")
            time.sleep(0.1)
        self.url = match[1]

    def processes(self) -> dict[str, int]:
        """Return the process ids of gateway and servers, by name."""
        task = Path(f"/proc/{self._process.pid}/task")
        children = [int(pid) for path in task.glob("*/children") for pid in path.read_text().split()]
        return {
            "gateway": self._process.pid,
            **{f"server {n}": pid for n, pid in enumerate(sorted(children))},
        }

    def stop(self) -> int:
        """Drain and stop the server; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)


def holds_per_s(url: str, images: Inputs, count: int, seconds: float = 8.0) -> float:
    """Return the images per second while 16 requests are always under way."""
    requests = int(seconds * 100)
    generator = LoadGenerator(url, images, Target().prefix(TERMS), connections=16, patience_s=seconds)
    numbers = np.random.default_rng(0).integers(count, size=(requests, IMAGES))
    sent = run(generator.run(np.zeros(requests), numbers))
    done_s = np.sort([one.done_s for one in sent if one.status == 200])
    first, last = len(done_s) // 5, 4 * len(done_s) // 5
    return float((last - first) * IMAGES / (done_s[last] - done_s[first]))


async def soak(
    server: Server, images: Inputs, count: int, rate: float, seconds: float, labels: NDArray[np.int64] | None
) -> tuple[LoadReport, dict[str, list[float]]]:
    """Send the load and read the memory of every process once per second."""
    due_s, numbers = due_times(load_of("poisson", rate / IMAGES, seconds), 0, count, IMAGES)
    generator = LoadGenerator(server.url, images, Target().prefix(TERMS))
    sending = asyncio.create_task(generator.run(due_s, numbers))
    processes = server.processes()
    memory: dict[str, list[float]] = {name: [] for name in processes}
    while not sending.done():
        for name, pid in processes.items():
            memory[name].append(resident_mib(pid))
        await asyncio.wait([sending], timeout=1.0)
    return report(await sending, labels, seconds=seconds, deadline_s=1e9), memory


def main() -> None:
    """Run the test and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--config", default=MACHINE, help="scenario; machine: its own choice")
    options = parser.parse_args()
    examples = test_examples(shipped_model().spec, None)
    images, count = {"images": examples.inputs[0]}, len(examples)
    server = Server(options.config)
    try:
        holds = holds_per_s(server.url, images, count)
        rate = options.load * holds
        print(f"{options.config} holds {holds:.0f} images/s at width 0.5; {examples.source}, "
              f"{rate:.0f} images/s for {options.minutes:g} min")  # fmt: skip
        figures, memory = run(soak(server, images, count, rate, 60 * options.minutes, examples.labels))
    finally:
        code = server.stop()
    print(f"{figures.requests} requests, outcomes {figures.outcomes}, "
          f"p50 {1e3 * figures.latency.p50_s:.1f} ms, p99 {1e3 * figures.latency.p99_s:.1f} ms; "
          f"exit code {code}\n")  # fmt: skip
    print("| process | start MiB | after ⅓ | after ⅔ | end | last third over second |")
    print("|---|---|---|---|---|---|")
    flat = True
    for name, values in memory.items():
        third = len(values) // 3
        growth = float(np.mean(values[2 * third :]) / np.mean(values[third : 2 * third]))
        flat &= growth <= FLAT
        at = " | ".join(f"{values[n]:.0f}" for n in (0, third, 2 * third, -1))
        print(f"| {name} | {at} | {growth - 1:+.2%} |")
    print("\nmemory is flat" if flat else "\nMEMORY GROWS")
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
