"""Drives a gRPC server with h2load, a client that is not Python: one call again and again, in a closed loop.

h2load speaks HTTP/2. A gRPC call is a POST with a framed message. Its status stands in the trailers, which
h2load does not read. So the server's own count of answers by status is read before and after.
"""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.api.grpc_server import SERVICE
from slimsched.serving.api.proto import inference_pb2

pb: Any = inference_pb2
STATUS = re.compile(r'slim_responses_total\{protocol="grpc",kind="infer",code="(\w+)"\} ([\d.e+]+)')

FINE = ("OK", "CANCELLED")
"""Calls that are under way when the time is up are cancelled."""


def write_call(model: str, pixels: NDArray[np.uint8], parameters: dict[str, str]) -> bytes:
    """Return a call that sends these images and asks for their classes."""
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="images", datatype="UINT8", shape=pixels.shape)
    message.outputs.add(name="classes")
    message.raw_input_contents.append(pixels.tobytes())
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    body = message.SerializeToString()
    return b"\0" + len(body).to_bytes(4, "big") + bytes(body)


def statuses(metrics: str) -> dict[str, float]:
    """Return how many calls ended with each status so far."""
    with urlopen(metrics) as page:
        return {code: float(count) for code, count in STATUS.findall(page.read().decode())}


def run_h2load(
    address: str,
    metrics: str,
    body: bytes,
    *,
    connections: int,
    under_way: int,
    seconds: float,
    threads: int = 4,
    binary: str = "h2load",
) -> tuple[float, int]:
    """Keep calls under way on all connections for a while; return answers per second and failures.

    h2load counts in whole seconds.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "body"
        file.write_bytes(body)
        command = [binary, "-t", str(threads), "-c", str(connections), "-m", str(under_way // connections)]
        command += ["-D", f"{max(1, round(seconds))}", "--warm-up-time=1", "-d", str(file)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        before = statuses(metrics)
        text = subprocess.run(
            [*command, f"http://{address}/{SERVICE}/ModelInfer"], capture_output=True, text=True, check=True
        ).stdout
        after = statuses(metrics)
    ended = {code: int(count - before.get(code, 0)) for code, count in after.items()}
    failed = sum(count for code, count in ended.items() if code not in FINE)
    per_s = re.search(r"finished in [^,]*, ([\d.]+) req/s", text)
    assert per_s is not None, text
    return float(per_s[1]), failed
