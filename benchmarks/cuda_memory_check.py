"""Images that stay on a GPU: are the answers right, how fast is it, and what do bad clients do to the server?

    python benchmarks/cuda_memory_check.py [--fronts 4] [--config FILE] [--wrk PATH]

Starts `slim serve --shared-memory`, registers a region of CUDA memory with 64 images, and compares the
answers with those to the same images in the body. Then wrk asks for the same in three ways in turn: images in
the body, in system shared memory, in CUDA memory. At last come handles that are none, a client that frees its
memory and one that dies. It ends with "all is well", or with a list of what is not and exit code 1.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from cuda_client import CudaClient
from data_plane import PATH, measure, shared
from numpy.typing import NDArray
from running import running, serve_command

from slimsched.serving.api.client_message import write_request

HERE = Path(__file__).parent
PLAN = {"plan": "1.0"}
IMAGE_BYTES, CLASS_BYTES, LOGITS_BYTES = 3072, 8, 400


class Check:
    """A server under test, and what was found wrong with it."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self.url, self.options = url, options
        self.wrong: list[str] = []

    def expect(self, is_right: bool, what: str) -> None:
        """Note what is not as it should be."""
        print(f"{'ok   ' if is_right else 'WRONG'} {what}", flush=True)
        if not is_right:
            self.wrong.append(what)

    def ask(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
        """Return the status and the answer; status 0 if there is none."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self.url + path, data, method=method), timeout=60) as response:
                return int(response.status), json.loads(response.read())
        except HTTPError as error:
            return error.code, json.loads(error.read()).get("error", "")
        except OSError as error:
            return 0, str(error)

    def register(self, name: str, handle: bytes, size: int, device: int = 0) -> tuple[int, Any]:
        """Register a region of CUDA memory."""
        raw = {"b64": base64.b64encode(handle).decode()}
        given = {"raw_handle": raw, "device_id": device, "byte_size": size}
        return self.ask(f"/v2/cudasharedmemory/region/{name}/register", given)

    def unregister(self, name: str) -> None:
        """Forget a region."""
        self.ask(f"/v2/cudasharedmemory/region/{name}/unregister", {})


def request(name: str, count: int, room: int) -> dict[str, Any]:
    """Write a request whose images lie at the start of a region; its outputs go behind `room` images."""
    end = room * IMAGE_BYTES

    def place(size: int, offset: int) -> dict[str, Any]:
        return {
            "shared_memory_region": name,
            "shared_memory_byte_size": size,
            "shared_memory_offset": offset,
        }

    tensor = {"name": "images", "shape": [count, 3, 32, 32], "datatype": "UINT8"}
    classes = {"name": "classes", "parameters": place(count * CLASS_BYTES, end)}
    logits = {
        "name": "logits",
        "parameters": place(count * LOGITS_BYTES, end + room * CLASS_BYTES),
    }
    return {
        "inputs": [{**tensor, "parameters": place(count * IMAGE_BYTES, 0)}],
        "outputs": [classes, logits],
        "parameters": PLAN,
    }


def check_answers(check: Check, gpu: CudaClient, pixels: NDArray[np.uint8], address: int) -> None:
    """Compare the answers with those to images in the body."""
    count = len(pixels)
    tensor = {"name": "images", "shape": list(pixels.shape), "datatype": "UINT8"}
    body = {"inputs": [{**tensor, "data": pixels.reshape(-1).tolist()}], "parameters": PLAN}
    status, answer = check.ask(PATH, body)
    check.expect(status == 200, f"images in the body are answered: {status}")
    outputs = {one["name"]: np.array(one["data"]) for one in answer["outputs"]}
    status, answer = check.ask(PATH, request("mine", count, count))
    check.expect(
        status == 200, f"images in CUDA memory are answered: {status} {answer if status != 200 else ''}"
    )
    raw = gpu.read(address + pixels.nbytes, count * (CLASS_BYTES + LOGITS_BYTES))
    classes = np.frombuffer(raw, np.int64, count)
    logits = np.frombuffer(raw, np.float32, offset=count * CLASS_BYTES)
    same = int((classes == outputs["classes"]).sum())
    apart = float(np.abs(logits - outputs["logits"].reshape(-1)).max())
    check.expect(same == count, f"{same} of {count} classes are the same")
    check.expect(apart < 0.1, f"logits differ by {apart:.2g} at most, of {np.abs(logits).max():.3g}")


def median_ms(ask: Callable[[], object], times: int = 200) -> float:
    """Return the median time of a call."""
    taken: list[float] = []
    for _ in range(times):
        began_s = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began_s)
    return round(1e3 * median(taken), 3)


def compare_speed(check: Check, root: int, pixels: NDArray[np.uint8]) -> None:
    """Let wrk ask in each way, twice in turn."""
    options, count = check.options, len(pixels)
    body, json_bytes = write_request({"images": pixels}, ("classes",), PLAN)
    asked = request("mine", count, count)
    asked["outputs"] = asked["outputs"][:1]
    small = json.dumps(asked).encode()
    one = json.dumps(request("mine", 1, count)).encode()
    for name, sent in (("1 image in CUDA memory", one), (f"{count} images in CUDA memory", small)):
        call = Request(check.url + PATH, sent, method="POST")
        print(json.dumps({"alone": name, "p50_ms": median_ms(lambda call=call: urlopen(call).read())}))
    headers = {"inference-header-content-length": str(json_bytes)}
    call = Request(check.url + PATH, body, headers, method="POST")
    alone = median_ms(lambda: urlopen(call).read())
    print(json.dumps({"alone": f"{count} images in the body", "p50_ms": alone}), flush=True)
    for _ in range(options.rounds):
        row = measure(check.url, root, body, json_bytes, PATH, count, options)
        print(json.dumps({"images in": "the body", **row}), flush=True)
        with shared(check.url, pixels, PLAN) as system:
            row = measure(check.url, root, system, len(system), PATH, count, options)
        print(json.dumps({"images in": "system shared memory", **row}), flush=True)
        row = measure(check.url, root, small, len(small), PATH, count, options)
        print(json.dumps({"images in": "CUDA memory", **row}), flush=True)
        check.expect(row["failed"] == 0, "no request with CUDA memory failed under load")


def try_bad_handles(check: Check, handle: bytes, size: int) -> None:
    """Register what cannot be registered."""
    tries = {
        "63 bytes": (handle[:63], size, 0),
        "zeros": (bytes(64), size, 0),
        "ones": (b"\xff" * 64, size, 0),
        "more bytes than there are": (handle, 2**32, 0),
        "device 99": (handle, size, 99),
        **{
            f"random {seed}": (np.random.default_rng(seed).bytes(64), size, 0)
            for seed in range(check.options.random)
        },
    }
    for name, given in tries.items():
        status, why = check.register("bad", *given)
        check.expect(status == 400, f"{name}: {status} {why}")
        check.unregister("bad")
    for at in range(0, 64, 4):  # whatever becomes of it, the server must live
        changed = bytearray(handle)
        changed[at] ^= 0x55
        status, why = check.register("bad", bytes(changed), size)
        if status == 200:
            status, why = check.ask(PATH, request("bad", 1, check.options.images))
        check.unregister("bad")
        check.expect(status != 0, f"byte {at} of a handle changed: {status} {why if status != 200 else ''}")


def try_leaving(check: Check, size: int) -> None:
    """Register memory of a process that frees it, then dies."""
    other = subprocess.Popen(
        [sys.executable, str(HERE / "cuda_client.py"), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None and other.stdout is not None  # noqa: PT018
    handle = base64.b64decode(other.stdout.readline())
    check.expect(check.register("theirs", handle, size)[0] == 200, "another process's memory is registered")
    check.expect(check.ask(PATH, request("theirs", 1, check.options.images))[0] == 200, "and used")
    other.stdin.write("free\n")
    other.stdin.flush()
    other.stdout.readline()
    for when in ("freed", "its owner killed"):
        answers = [check.ask(PATH, request("theirs", 1, check.options.images)) for _ in range(8)]
        said = sorted({f"{status} {why if status != 200 else ''}" for status, why in answers})
        check.expect(all(status in (200, 400) for status, _ in answers), f"memory {when}: {'; '.join(said)}")
        other.kill()
        other.wait()
    check.unregister("theirs")
    print("      registered again:", *check.register("theirs", handle, size))
    check.unregister("theirs")


def run(check: Check, root: int) -> None:
    """Check everything in turn."""
    count = check.options.images
    pixels = np.random.default_rng(0).integers(256, size=(count, 3, 32, 32)).astype(np.uint8)
    size = pixels.nbytes + count * (CLASS_BYTES + LOGITS_BYTES)
    gpu = CudaClient()
    address = gpu.allocate(size)
    gpu.write(address, pixels.tobytes())
    handle = gpu.handle(address)
    extensions = check.ask("/v2", method="GET")[1]["extensions"]
    check.expect("cuda_shared_memory" in extensions, f"extensions: {', '.join(extensions)}")
    free_bytes = gpu.free_bytes()
    for name in ("mine", "again"):
        began_s = time.perf_counter()
        status, why = check.register(name, handle, size)
        took_ms = 1e3 * (time.perf_counter() - began_s)
        check.expect(status == 200, f"region '{name}' is registered in {took_ms:.1f} ms {why or ''}")
    if check.wrong:
        return
    taken_mib = (free_bytes - gpu.free_bytes()) / 2**20
    print(
        f"      contexts of the gateway and {check.options.fronts} fronts take {taken_mib:.0f} MiB of the GPU"
    )
    check.unregister("again")
    check_answers(check, gpu, pixels, address)
    compare_speed(check, root, pixels)
    try_bad_handles(check, handle, size)
    try_leaving(check, size)
    check_answers(check, gpu, pixels, address)
    check.unregister("mine")
    gpu.free(address)


def main() -> None:
    """Serve, check, and say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=str(HERE / "h200-one-batch.toml"), help="scenario")
    parser.add_argument("--fronts", type=int, default=4)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--random", type=int, default=20, help="how many random handles to try")
    parser.add_argument("--port", type=int, default=18613)
    parser.add_argument("--wrk", default="wrk")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    check = Check(url, options)
    if check.ask("/v2/health/live", method="GET")[0]:
        raise SystemExit(f"somebody listens at port {options.port}; give another with --port")
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [*serve_command(options.config, options.fronts, options.port), "--shared-memory"]
        with running(command, f"{url}/v2/health/ready", log) as root:
            run(check, root)
            status, _ = check.ask("/v2/health/ready", method="GET")
            check.expect(status == 200, f"the server is ready at the end: {status}")
            check.expect(os.path.exists(f"/proc/{root}"), "the gateway lives")
        text = log.read_text()
        for sign in ("Traceback", "ended (exit code"):
            check.expect(sign not in text, f"the server's log has no '{sign}'")
        if check.wrong:
            print(text[-4000:])
    print("all is well" if not check.wrong else "wrong:\n  " + "\n  ".join(check.wrong))
    raise SystemExit(bool(check.wrong))


if __name__ == "__main__":
    main()
