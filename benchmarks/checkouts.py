"""Throughput of two checkouts of this project, served in turn: has a change made the server slower?

    python benchmarks/checkouts.py --old ../old --new . [--scenario FILE] [--rounds 3]

Each checkout serves SlimResNet with its own copy of the scenario file. wrk asks for one width after another
in a closed loop. A row says images per second of both and the median of the ratios, new over old.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from running import SLIM, running
from wrk import run_wrk

from slimsched.serving.api.client.client import write_request


@contextmanager
def served(checkout: Path, scenario: str, port: int, log: Path) -> Iterator[str]:
    """Serve with this checkout's code; yield the address."""
    named = ["--config", str(checkout / scenario)] if scenario.endswith(".toml") else ["--scenario", scenario]
    command = [*SLIM, "serve", *named, "--http-port", str(port), "--grpc-port", str(port + 1)]
    environment = {**os.environ, "PYTHONPATH": str((checkout / "src").resolve())}
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/v2/health/ready", log, environment, checkout):
        yield url


def main() -> None:
    """Serve the checkouts in turn and print a row per width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, default=Path())
    parser.add_argument("--scenario", default="benchmarks/peers/two-cores.toml", help="file in the checkout")
    parser.add_argument("--widths", default="0.25,0.5,1.0")
    parser.add_argument("--images", type=int, default=8, help="images per request")
    parser.add_argument("--under-way", type=int, default=256, help="images asked for at a time")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=18300)
    parser.add_argument("--wrk", default="wrk", help="the program wrk")
    options = parser.parse_args()
    widths = [float(width) for width in options.widths.split(",")]
    rates: dict[tuple[str, float], list[float]] = {}
    for number in range(options.rounds):
        order = ("old", "new") if number % 2 == 0 else ("new", "old")
        for name in order:
            for width, per_s in _rates(options, getattr(options, name), widths).items():
                rates.setdefault((name, width), []).append(per_s)
                print(f"round {number + 1}, {name}, width {width}: {per_s:,.0f} images/s", file=sys.stderr)
    for width in widths:
        old, new = rates["old", width], rates["new", width]
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        row = {"width": width, "old": round(statistics.median(old)), "new": round(statistics.median(new))}
        print(json.dumps({**row, "new_over_old": round(ratio, 3)}), flush=True)


def _rates(options: argparse.Namespace, checkout: Path, widths: list[float]) -> dict[float, float]:
    pixels = np.random.default_rng(0).integers(256, size=(options.images, 3, 32, 32)).astype(np.uint8)
    found = {}
    with (
        TemporaryDirectory() as folder,
        served(checkout, options.scenario, options.port, Path(folder) / "log") as url,
    ):
        for width in widths:
            body, json_bytes = write_request({"images": pixels}, ("classes",), {"width": width})
            result = run_wrk(
                url,
                "/v2/models/slimresnet/infer",
                body,
                json_bytes,
                connections=max(8, options.under_way // options.images),
                seconds=options.seconds,
                binary=options.wrk,
            )
            if result.failed:
                print(f"{result.failed} requests were refused or broken", file=sys.stderr)
            found[width] = result.per_s * options.images
    return found


if __name__ == "__main__":
    main()
