"""Drives a server with wrk, a client that is not Python: one request again and again, in a closed loop."""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

SCRIPT = """
wrk.method = "POST"
wrk.path = "{path}"
wrk.headers["content-type"] = "application/octet-stream"
wrk.headers["inference-header-content-length"] = "{json_bytes}"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
"""


class WrkResult(Struct, frozen=True):
    """Answers per second, how many were refused or broken, and latency by percentile in milliseconds."""

    per_s: float
    failed: int
    p50_ms: float
    p99_ms: float


def run_wrk(
    url: str,
    path: str,
    body: bytes,
    json_bytes: int,
    *,
    connections: int,
    seconds: float,
    threads: int = 4,
    binary: str = "wrk",
) -> WrkResult:
    """Send this request over all connections for a while."""
    with TemporaryDirectory() as folder:
        script, body_file = Path(folder) / "request.lua", Path(folder) / "body"
        body_file.write_bytes(body)
        script.write_text(SCRIPT.format(path=path, json_bytes=json_bytes, body=body_file))
        command = [binary, "-t", str(min(threads, connections)), "-c", str(connections)]
        command += ["-d", f"{seconds:.0f}s", "--latency", "--timeout", "10s", "-s", str(script), url]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    failed = sum(int(one) for one in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    for line in re.findall(r"Socket errors: (.*)", text):
        failed += sum(int(one) for one in re.findall(r"\d+", line))
    return WrkResult(
        float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]),  # type: ignore[index]
        failed,
        _ms(re.search(r"50%\s+([\d.]+)(us|ms|s|m)", text)),
        _ms(re.search(r"99%\s+([\d.]+)(us|ms|s|m)", text)),
    )


def _ms(found: re.Match[str] | None) -> float:
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
    return float(found[1]) * units[found[2]] if found else float("nan")
