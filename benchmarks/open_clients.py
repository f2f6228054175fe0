"""Several open-loop clients in processes of their own: one alone cannot send what a GPU answers."""

from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from open_loop import OpenLoop, Seen, poisson

from slimsched.serving.api.client.client import write_request


def write_http(path: str, pixels: NDArray[np.uint8], parameters: dict[str, Any]) -> bytes:
    """Return a whole HTTP request that sends these images and asks for their classes."""
    body, json_bytes = write_request({"images": pixels}, ("classes",), parameters)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n"
        f"content-length: {len(body)}\r\ninference-header-content-length: {json_bytes}\r\n\r\n"
    )
    return head.encode() + body


def run_clients(
    port: int,
    requests: list[bytes],
    rate_per_s: float,
    seconds: float,
    *,
    clients: int,
    seed: int,
) -> list[Seen]:
    """Send Poisson arrivals from all clients together; return what became of each request."""
    context = get_context("spawn")
    with context.Pool(clients) as pool:
        jobs = [(port, requests, rate_per_s / clients, seconds, seed + n) for n in range(clients)]
        return [seen for part in pool.starmap(_run, jobs) for seen in part]


def _run(port: int, requests: list[bytes], rate_per_s: float, seconds: float, seed: int) -> list[Seen]:
    loop = OpenLoop(port, requests)
    try:
        return loop.run(poisson(rate_per_s, seconds, np.random.default_rng(seed)))
    finally:
        loop.close()
