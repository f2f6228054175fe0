"""Two checkouts of this project in turn: has a change made the server, or a command, slower?

    python benchmarks/checkouts.py --old ../old --new . [--scenario FILE] [--rounds 3] [--grpc]
    python benchmarks/checkouts.py --old ../old --new . --commands [--rounds 5]

Each checkout serves SlimResNet with its own copy of the scenario file. wrk, and h2load with `--grpc`, ask
for one width after another in a closed loop. A row says images per second of both, and how fast new is beside
old: the median of the rounds. With `--commands`, a row says the CPU seconds that a command takes.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import numpy as np
from h2load import run_h2load, write_call
from running import SLIM, running
from wrk import run_wrk

from slimsched.serving.api.client.client import write_request

COMMANDS = {
    **{
        f"simulate {router}": ["simulate", "--router", router, "--seconds", "5"]
        for router in ("goal", "sed", "random")
    },
    "jobs compare": ["jobs", "compare", "--jobs", "1000", "--seed", "1"],
    "help": ["--help"],
}

SETTLE_S = 4.0


def environment(checkout: Path) -> dict[str, str]:
    """Return the variables that make Python take the code of a checkout."""
    folders = [str(checkout / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


@contextmanager
def served(checkout: Path, scenario: str, port: int, log: Path) -> Iterator[str]:
    """Serve with this checkout's code; yield the address."""
    named = ["--config", str(checkout / scenario)] if scenario.endswith(".toml") else ["--scenario", scenario]
    command = [*SLIM, "serve", *named, "--http-port", str(port), "--grpc-port", str(port + 1)]
    url = f"http://127.0.0.1:{port}"
    began_s = time.perf_counter()
    with running(command, f"{url}/v2/health/ready", log, environment(checkout), checkout):
        print(f"ready after {time.perf_counter() - began_s:.2f} s", file=sys.stderr)
        settle(url)
        yield url


def settle(url: str) -> None:
    """Look at a server's metrics once, and give it the time to solve its fluid bound, which it then does."""
    with urlopen(f"{url}/metrics"):
        time.sleep(SETTLE_S)


def main() -> None:
    """Run the checkouts in turn and print a row for each width or command."""
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
    parser.add_argument("--h2load", default="h2load", help="the program h2load")
    parser.add_argument("--grpc", action="store_true", help="ask over gRPC, too")
    parser.add_argument("--commands", action="store_true", help="time commands instead of serving")
    options = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
            checkout = getattr(options, name).resolve()
            seen = command_seconds(checkout) if options.commands else rates(options, checkout)
            for what, value in seen.items():
                figures.setdefault(what, {"old": [], "new": []})[name].append(value)
                print(f"round {number + 1}, {name}, {what}: {value:,.2f}", file=sys.stderr, flush=True)
    for what, both in figures.items():
        pairs = zip(both["old"], both["new"], strict=True)
        ratios = sorted(old / new if options.commands else new / old for old, new in pairs)
        medians = {name: round(statistics.median(values), 2) for name, values in both.items()}
        ratio = {"speed_new_over_old": round(statistics.median(ratios), 3)}
        spread = {"lowest": round(ratios[0], 3), "highest": round(ratios[-1], 3)}
        print(json.dumps({"what": what, **medians, **ratio, **spread}), flush=True)


def command_seconds(checkout: Path) -> dict[str, float]:
    """Return the CPU seconds that each command takes with this checkout's code."""
    taken = {}
    for name, words in COMMANDS.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [*SLIM, *words]
        subprocess.run(command, env=environment(checkout), cwd=checkout, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return taken


def rates(options: argparse.Namespace, checkout: Path) -> dict[str, float]:
    """Return the images per second of each width, over each protocol, with this checkout's server."""
    pixels = np.random.default_rng(0).integers(256, size=(options.images, 3, 32, 32)).astype(np.uint8)
    connections = max(8, options.under_way // options.images)
    seen = {}
    with (
        TemporaryDirectory() as folder,
        served(checkout, options.scenario, options.port, Path(folder) / "log") as url,
    ):
        for width in options.widths.split(","):
            body, json_bytes = write_request({"images": pixels}, ("classes",), {"width": float(width)})
            path = "/v2/models/slimresnet/infer"
            settings = {"connections": connections, "seconds": options.seconds}
            result = run_wrk(url, path, body, json_bytes, binary=options.wrk, **settings)
            seen[f"HTTP, width {width}"] = result.per_s * options.images
            failed = result.failed
            if options.grpc:
                call = write_call("slimresnet", pixels, {"plan": width})
                per_s, broken = run_h2load(
                    f"127.0.0.1:{options.port + 1}",
                    f"{url}/metrics",
                    call,
                    under_way=connections,
                    binary=options.h2load,
                    connections=8,
                    seconds=options.seconds,
                )
                seen[f"gRPC, width {width}"] = per_s * options.images
                failed += broken
            if failed:
                print(f"{failed} requests were refused or broken", file=sys.stderr)
    return seen


if __name__ == "__main__":
    main()
