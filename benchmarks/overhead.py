"""The overhead of a request, besides waiting and computing: HTTP, gateway, hops between processes.

    python benchmarks/overhead.py [--rate 200] [--width 0.25] [--seconds 10]

Starts `slim serve` on the laptop scenario, sends single images over HTTP in open loop (Poisson arrivals) and
splits the latency of each answer by its receipt. Hops is the receipt's network time: everything between
gateway and servers for four segments. HTTP is how long the client waited beyond the receipt's total. Overhead
is the sum of both.
"""

import argparse
import os
import signal
import subprocess
import sys
import urllib.request

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.api.client.client import read_answer
from slimsched.serving.api.client.load import LoadGenerator, Target, due_times, load_of
from slimsched.serving.live.wire import run

PARTS = ("queue", "compute", "hops", "http", "overhead", "latency")


def serve(port: int, router: str) -> subprocess.Popen[str]:
    """Start `slim serve` and wait until it is ready."""
    code = "from slimsched.cli.app import main; main()"
    words = ["serve", "--router", router, "--http-port", str(port), "--grpc-port", "0"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "ready:" in line:
            return process
    raise SystemExit("slim serve did not start")


async def measure(port: int, rate: float, width: float, seconds: float) -> NDArray[np.float64]:
    """Return the milliseconds of each part, one row per answered request."""
    images = np.random.default_rng(0).integers(0, 256, (256, 3, 32, 32), dtype=np.uint8)
    generator = LoadGenerator(
        f"http://127.0.0.1:{port}", {"images": images}, Target().prefix({"plan": str(width)})
    )
    sent = await generator.run(*due_times(load_of("poisson", rate, seconds), 0, len(images), 1))
    rows = []
    for one in sent[len(sent) // 10 :]:
        if one.reply is None or one.status != 200:
            raise SystemExit(f"a request was answered with {one.status}; choose a lower rate")
        receipt = read_answer(one.reply.body, one.reply.json_bytes).receipt
        queue, compute, hops = (float(receipt[f"{part}_ms"]) for part in ("queue", "compute", "network"))
        latency = 1e3 * (one.done_s - one.sent_s)
        http = latency - queue - compute - hops
        rows.append((queue, compute, hops, http, hops + http, latency))
    return np.array(rows)


def inside(port: int) -> float:
    """Return the server's own mean overhead in ms: request to response, minus queue and compute."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = [line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line[:1] != "#"]
    metrics = {name.partition("{")[0]: float(value) for name, value in lines if "grpc" not in name}
    spans = ("slim_infer_seconds", "slim_image_queue_seconds", "slim_image_compute_seconds")
    whole, queue, compute = (1e3 * metrics[f"{name}_sum"] / metrics[f"{name}_count"] for name in spans)
    return whole - queue - compute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--router", default="sed")
    parser.add_argument("--port", type=int, default=8765)
    given = parser.parse_args()
    process = serve(given.port, given.router)
    try:
        rows = run(measure(given.port, given.rate, given.width, given.seconds))
        inside_ms = inside(given.port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    print(f"{len(rows)} requests at {given.rate:g}/s, width {given.width:g}, {os.cpu_count()} cores; ms")
    print(f"{'':>10}{'p50':>8}{'p90':>8}{'p99':>8}{'mean':>8}")
    for part, values in zip(PARTS, rows.T, strict=True):
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        print(f"{part:>10}{p50:8.2f}{p90:8.2f}{p99:8.2f}{values.mean():8.2f}")
    print(f"mean overhead without client and sockets, as the server measures it: {inside_ms:.2f}")


if __name__ == "__main__":
    main()
