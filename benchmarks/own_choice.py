"""What `slim serve` chooses for itself beside a scenario file, both up all the time, asked in turn.

    SLIM_DATA=… python benchmarks/own_choice.py [--file FILE] [--images 1 8] [--rounds 8]
    python benchmarks/own_choice.py --start

The file is the best that a person wrote for two cores: two servers at full speed, with batch limits. wrk asks
for one width after another in a closed loop. Then `slim load` sends an open loop at 100 and 200 % of what
the file carried at full width, and each server chooses freely: what counts is correct answers in time per
second. A row says both medians and the median of the ratios. `--start` times commands and starts instead:
with measurements that are kept, and without.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from running import MACHINE, SLIM, running, serve_command
from wrk import run_wrk

from slimsched.serving.api.client.client import write_request

DEADLINE_MS = 500
FILE, OWN = "file", "own choice"
Rates = dict[str, list[float]]


def main() -> None:
    """Print a row for each way of asking."""
    options = _options()
    if options.start:
        _starts(options)
        return
    urls = {name: f"http://127.0.0.1:{options.port + 2 * n}" for n, name in enumerate((FILE, OWN))}
    with TemporaryDirectory() as folder, ExitStack() as servers:
        for (name, url), config in zip(urls.items(), (options.file, MACHINE), strict=True):
            command = serve_command(config, 0, int(url.rpartition(":")[2]))
            servers.enter_context(running(command, f"{url}/v2/health/ready", Path(folder, name)))
        for images in options.images:
            carried = 0.0
            for width in options.widths:
                rates = _in_turn(urls, options, lambda url: _closed(url, images, width, options))  # noqa: B023
                carried = statistics.median(rates[FILE]) if width == 1.0 else carried
                _say({"images": images, "width": width}, rates)
            for load in options.loads if carried else ():
                per_s = load * carried / images
                rates = _in_turn(urls, options, lambda url: _free(url, images, per_s, options))  # noqa: B023
                _say({"images": images, "load": load}, rates)


def _in_turn(urls: dict[str, str], options: argparse.Namespace, ask: Callable[[str], float]) -> Rates:
    """Ask both servers, another one first each time, and return what was measured."""
    found: Rates = {name: [] for name in urls}
    for number in range(options.rounds):
        for name in list(urls)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(ask(urls[name]))
    return found


def _say(row: dict[str, float], rates: Rates) -> None:
    ratio = statistics.median(own / file for file, own in zip(rates[FILE], rates[OWN], strict=True))
    medians = {name: round(statistics.median(per_s)) for name, per_s in rates.items()}
    print(json.dumps({**row, **medians, "ratio": round(ratio, 3)}), flush=True)


def _closed(url: str, images: int, width: float, options: argparse.Namespace) -> float:
    """Return images per second at a width, with enough requests under way."""
    pixels = np.random.default_rng(0).integers(256, size=(images, 3, 32, 32)).astype(np.uint8)
    body, json_bytes = write_request({"images": pixels}, ("classes",), {"width": width})
    connections = max(8, 256 // images)
    path = "/v2/models/slimresnet/infer"
    result = run_wrk(url, path, body, json_bytes, connections=connections, seconds=options.seconds)
    return result.per_s * images


def _free(url: str, images: int, per_s: float, options: argparse.Namespace) -> float:
    """Return correct answers in time per second, at so many requests per second."""
    command = [*SLIM, "load", "--url", url, "--rate", f"{per_s:.1f}", "--seconds", f"{options.seconds:g}"]
    command += ["--images", str(images), "--deadline-ms", str(DEADLINE_MS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    figures = json.loads(done.stdout)
    return float(figures["correct_in_time_per_s"])


def _starts(options: argparse.Namespace) -> None:
    """Print how long commands take, and how long `slim serve` takes until it is ready."""
    for words in (["--help"], ["serve", "--wrong"], ["serve", "--devices", "gpu"]):
        took_s = [_command_s(words) for _ in range(options.rounds)]
        print(json.dumps({"command": " ".join(words), "seconds": round(statistics.median(took_s), 2)}))
    for cache in ("unknown", "known"):
        ready_s = []
        for _ in range(options.rounds):
            with TemporaryDirectory() as folder:
                kept = Path(folder, "cache") if cache == "unknown" else options.cache
                ready_s.append(_ready_s(options.port, kept, Path(folder, "log")))
        print(json.dumps({"machine": cache, "seconds": round(statistics.median(ready_s), 2)}), flush=True)


def _command_s(words: list[str]) -> float:
    began_s = time.perf_counter()
    subprocess.run([*SLIM, *words], capture_output=True, check=False)
    return time.perf_counter() - began_s


def _ready_s(port: int, cache: Path, log: Path) -> float:
    url, began_s = f"http://127.0.0.1:{port}/v2/health/ready", time.perf_counter()
    environment = {**os.environ, "SLIM_CACHE": str(cache)}
    with running(serve_command(MACHINE, 0, port), url, log, environment):
        return time.perf_counter() - began_s


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", default="benchmarks/peers/two-cores.toml", help="the scenario file")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8], help="images per request")
    parser.add_argument("--widths", type=float, nargs="+", default=[1.0, 0.5, 0.25])
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0, 2.0], help="when choosing freely")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--port", type=int, default=18600)
    parser.add_argument("--start", action="store_true", help="time commands and starts instead")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "slim-scheduler")
    return parser.parse_args()


if __name__ == "__main__":
    main()
