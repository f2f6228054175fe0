"""Near capacity for minutes, while front processes are killed one by one: what is lost, is memory flat?

    python benchmarks/front_deaths.py --rate 2500 --minutes 4 [--every 20] [--config FILE]

Clients send Poisson arrivals over HTTP. A front is killed at regular times; the connections that it held
drop, and their requests have no answer. Everything else must be answered. Afterwards the gateway's own counts
must agree: every example that arrived was answered or dropped. Memory is read from /proc each second.
"""

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from data_plane import PATH, Taken, processes
from goal_at_load import counted
from open_clients import run_clients, write_http
from running import MACHINE, resident_mib, running, serve_command


class Watch(threading.Thread):
    """Reads the memory of all processes, and kills a front now and then."""

    def __init__(self, root: int, every_s: float) -> None:
        super().__init__(daemon=True)
        self._root, self._every_s, self._ended = root, every_s, threading.Event()
        self.deaths: list[float] = []
        self.memory: dict[str, list[float]] = {}

    def run(self) -> None:
        """Look once per second until it is over."""
        began_s = time.monotonic()
        while not self._ended.wait(1.0):
            kinds: dict[str, float] = {}
            fronts: list[int] = []
            for pid, kind in processes(self._root).items():
                try:
                    kinds[kind] = kinds.get(kind, 0.0) + resident_mib(pid)
                except (OSError, IndexError):
                    continue
                fronts += [pid] if kind == "fronts" else []
            for kind, mib in kinds.items():
                self.memory.setdefault(kind, []).append(mib)
            if fronts and time.monotonic() - began_s > self._every_s * (1 + len(self.deaths)):
                os.kill(sorted(fronts)[len(self.deaths) % len(fronts)], signal.SIGKILL)
                self.deaths.append(time.monotonic() - began_s)

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        self.join()

    def thirds(self) -> dict[str, list[float]]:
        """Return the median memory of each third of the time, in MiB."""
        parts = {kind: np.array_split(values, 3) for kind, values in self.memory.items()}
        return {kind: [round(float(np.median(one))) for one in thirds] for kind, thirds in parts.items()}


def main() -> None:
    """Serve, send, kill, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=MACHINE, help="scenario; machine: its own choice")
    parser.add_argument("--fronts", type=int, default=6)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--plan", default="1.0")
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between deaths of fronts")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--port", type=int, default=18600)
    options = parser.parse_args()
    url, images = f"http://127.0.0.1:{options.port}", options.images
    pixels = np.random.default_rng(0).integers(256, size=(images, 3, 32, 32)).astype(np.uint8)
    request = write_http(PATH, pixels, {"plan": options.plan})
    command = serve_command(options.config, options.fronts, options.port)
    with (
        TemporaryDirectory() as folder,
        running(command, f"{url}/v2/health/ready", Path(folder) / "log") as root,
    ):
        watch = Watch(root, options.every)
        watch.start()
        with Taken(root, stays=False) as taken:
            seen = run_clients(
                options.port, [request], options.rate, 60.0 * options.minutes, clients=options.clients, seed=0
            )
        watch.end()
        time.sleep(1.0)
        counts = counted(url)
        took_ms = np.array([1e3 * one.took_s for one in seen if one.status == 200])
        unanswered = [one for one in seen if one.status == 0]
        near = sum(any(abs(one.sent_s - at_s) < 5.0 for at_s in watch.deaths) for one in unanswered)
        row = {
            "requests": len(seen),
            "answered": len(took_ms),
            "images_per_s": round(len(took_ms) * images / (60.0 * options.minutes)),
            "refused": sum(one.status in (429, 503, 504) for one in seen),
            "no_answer": len(unanswered),
            "of_these_within_5_s_of_a_death": near,
            "fronts_killed": len(watch.deaths),
            "p50_ms": round(float(np.median(took_ms)), 1),
            "p99_ms": round(float(np.percentile(took_ms, 99)), 1),
            "arrived": counts["slim_images_arrived_total"],
            "ended": sum(counts.get(f"slim_images_total{one}", 0.0) for one in ("", "_answered")),
            "memory_mib_by_third": watch.thirds(),
            **taken.figures,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
