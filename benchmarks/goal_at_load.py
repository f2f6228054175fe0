"""What `goal` serves over HTTP at shares of the measured capacity: accuracy, latency and what is refused.

    python benchmarks/goal_at_load.py [--config FILE] [--images 64] [--loads 0.5 0.8 1 1.5]

wrk first measures the capacity: images per second at the widest plan in a closed loop. Then clients send
Poisson arrivals at shares of it, with a deadline, and the router chooses. Accuracy is that of the plans
served, by the model's table. Every row says what the GPU and the processes took.
"""

import argparse
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from data_plane import PATH, Taken, measure
from open_clients import run_clients, write_http
from open_loop import Seen
from running import MACHINE, running, serve_command

from slimsched.serving.api.client.client import write_request

COUNTS = re.compile(r"^(slim_images_[a-z_]+)(?:\{([^}]*)\})? ([\d.e+]+)$", re.MULTILINE)
THROTTLED = Path("/sys/fs/cgroup/cpu.stat")
WARM_UP_S = 1.0


def counted(url: str) -> dict[str, float]:
    """Read the server's counts of examples."""
    with urlopen(f"{url}/metrics") as page:
        text = page.read().decode()
    counts: dict[str, float] = {}
    for name, labels, value in COUNTS.findall(text):
        outcome = "_answered" if 'outcome="answered"' in labels else ""
        counts[name + outcome] = counts.get(name + outcome, 0.0) + float(value)
    return counts


def main() -> None:
    """Measure the capacity, then each load, and print a row for each."""
    options = parsed()
    url, images = f"http://127.0.0.1:{options.port}", options.images
    pixels = np.random.default_rng(0).integers(256, size=(images, 3, 32, 32)).astype(np.uint8)
    with TemporaryDirectory() as folder:
        command = serve_command(options.config, options.fronts, options.port)
        with running(command, f"{url}/v2/health/ready", Path(folder) / "log") as root:
            body, json_bytes = write_request({"images": pixels}, ("classes",), {"plan": "1.0"})
            row = measure(url, root, body, json_bytes, PATH, images, options)
            print(json.dumps({"capacity": True, **row}), flush=True)
            capacity = float(str(row["images_per_s"]))
            for load in options.loads:
                row = measure_load(options, root, load, capacity, pixels)
                print(json.dumps({"load": load, **row}), flush=True)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=MACHINE, help="scenario; machine: its own choice")
    parser.add_argument("--fronts", type=int, default=6)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.5, 0.8, 1.0, 1.5])
    parser.add_argument("--deadline-ms", type=float, default=250.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--port", type=int, default=18500)
    parser.add_argument("--wrk", default="wrk")
    return parser.parse_args()


def measure_load(
    options: argparse.Namespace, root: int, load: float, capacity: float, pixels: Any
) -> dict[str, Any]:
    """Send one load, and return what became of it."""
    url, rate = f"http://127.0.0.1:{options.port}", load * capacity / options.images
    request = write_http(PATH, pixels, {"deadline_ms": options.deadline_ms})
    how = {"clients": options.clients, "seed": round(100 * load)}
    run_clients(options.port, [request], rate, WARM_UP_S, **how)
    before = counted(url)
    rested = throttled()
    with Taken(root) as taken:
        seen = run_clients(options.port, [request], rate, options.seconds, **how)
    rests = {name: count - rested[name] for name, count in throttled().items()}
    after = counted(url)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    return figures(seen, grown, options) | taken.figures | rests


def throttled() -> dict[str, int]:
    """Return how often and how long the system made this group of processes rest, where it says so."""
    try:
        pairs = [line.split() for line in THROTTLED.read_text().splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value in pairs if "throttled" in name}


def figures(seen: list[Seen], grown: dict[str, float], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one load."""
    took_ms = np.array([1e3 * one.took_s for one in seen if one.status == 200])
    left_late_ms = 1e3 * float(np.percentile([one.sent_s - one.due_s for one in seen], 99))
    answered = max(1.0, grown.get("slim_images_total_answered", 0.0))
    return {
        "offered_images_per_s": round(len(seen) * options.images / options.seconds),
        "answered_images_per_s": round(len(took_ms) * options.images / options.seconds),
        "late": int((took_ms > options.deadline_ms).sum()),
        "refused": sum(one.status in (429, 503, 504) for one in seen),
        "other": sum(one.status not in (200, 429, 503, 504) for one in seen),
        "left_late_ms": round(left_late_ms, 1),
        "accuracy": round(100 * grown["slim_images_correct_expected_total"] / answered, 2),
        "mean_ms": round(float(took_ms.mean()), 2) if len(took_ms) else None,
        "p99_ms": round(float(np.percentile(took_ms, 99)), 2) if len(took_ms) else None,
    }


if __name__ == "__main__":
    main()
