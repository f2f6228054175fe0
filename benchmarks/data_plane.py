"""Images per second over HTTP at one width: ours and mosec in turn, with the CPU time of every process.

    python benchmarks/data_plane.py [--config FILE --fronts 0 4] [--images 1 8 64] [--plan 1.0] [--mosec 3]

wrk sends the same request again and again over a number of connections. A row says how many images per second
were answered, how many requests failed, latency, the GPU's utilization, and how many cores the gateway, the
fronts, the servers and wrk took. The peer runs the same weights, each worker with CUDA graphs of its own.
With `--shared-memory`, a second row for each: the images lie in shared memory and the request names them.
With `--grpc`, another row for each: the same images in gRPC calls, sent by h2load.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import numpy as np
from h2load import run_h2load, write_call
from numpy.typing import NDArray
from running import MACHINE, running, serve_command
from wrk import run_wrk

from models import Utilization
from slimsched.serving.api.client.client import write_request

HERE = Path(__file__).parent
PATH = "/v2/models/slimresnet/infer"
CONNECTIONS = {1: 128, 8: 128, 64: 48}
GRPC_CONNECTIONS = 24
TICKS = os.sysconf("SC_CLK_TCK")


def processes(root: int) -> dict[int, str]:
    """List a process and its children by what they are."""
    found = {root: "gateway"}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if parent == root:
            found[int(path.name)] = "fronts" if "fronts.front" in command else "servers"
    return found


def cpu_s(numbers: dict[int, str]) -> dict[str, float]:
    """Return the seconds of CPU time that each kind of process has taken."""
    taken: dict[str, float] = {}
    for number, kind in numbers.items():
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        taken[kind] = taken.get(kind, 0.0) + (int(fields[11]) + int(fields[12])) / TICKS
    return taken


def measure(
    url: str, root: int, body: bytes, json_bytes: int, path: str, images: int, options: argparse.Namespace
) -> dict[str, object]:
    """Ask with wrk for a while."""
    asked = {"connections": connections_for(images, options), "binary": options.wrk}
    run_wrk(url, path, body, json_bytes, seconds=1.0, **asked)
    with Taken(root) as taken:
        result = run_wrk(url, path, body, json_bytes, seconds=options.seconds, **asked)
    return {
        "images": images,
        "connections": asked["connections"],
        "images_per_s": round(result.per_s * images),
        "failed": result.failed,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        **taken.figures,
    }


def connections_for(images: int, options: argparse.Namespace) -> int:
    """Return how many requests are under way."""
    return int(options.connections or CONNECTIONS.get(images, 64))


class Taken:
    """What the GPU and the processes of a server take in a block."""

    def __init__(self, root: int, *, stays: bool = True) -> None:
        """Without `stays`, processes come and go, and only the root is counted."""
        self._numbers, self._gpu = processes(root) if stays else {root: "gateway"}, Utilization()
        self.figures: dict[str, object] = {}

    def __enter__(self) -> "Taken":
        self._before, self._began_s = cpu_s(self._numbers), time.monotonic()
        self._gpu.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._gpu.__exit__(*error)
        passed_s, before = time.monotonic() - self._began_s, self._before
        spent = {kind: (one - before[kind]) / passed_s for kind, one in cpu_s(self._numbers).items()}
        percent = self._gpu.percent
        cores = {kind: round(one, 2) for kind, one in spent.items()}
        self.figures = {"gpu_percent": percent and round(percent), "cores": cores}


def measure_grpc(
    address: str, url: str, root: int, body: bytes, images: int, options: argparse.Namespace
) -> dict[str, object]:
    """Ask with h2load for a while, with as many calls under way as wrk has connections."""
    under_way, connections = connections_for(images, options), GRPC_CONNECTIONS
    with Taken(root) as taken:
        per_s, failed = run_h2load(
            address,
            f"{url}/metrics",
            body,
            connections=connections,
            under_way=under_way,
            seconds=options.seconds,
            binary=options.h2load,
        )
    about = {"images": images, "connections": connections, "under_way": under_way}
    return {**about, "images_per_s": round(per_s * images), "failed": failed, **taken.figures}


@contextmanager
def shared(url: str, pixels: NDArray[np.uint8], parameters: dict[str, str]) -> Iterator[bytes]:
    """Put images into shared memory and register it; yield a request that names them."""
    key, size = f"data-plane-{os.getpid()}", pixels.nbytes + 8 * len(pixels)
    path = Path("/dev/shm") / key
    path.write_bytes(pixels.tobytes() + bytes(8 * len(pixels)))
    place = {"shared_memory_region": key, "shared_memory_byte_size": pixels.nbytes}
    taken = {"shared_memory_offset": pixels.nbytes, "shared_memory_byte_size": 8 * len(pixels)}
    tensor = {"name": "images", "shape": pixels.shape, "datatype": "UINT8", "parameters": place}
    output = {"name": "classes", "parameters": {**place, **taken}}
    region = f"{url}/v2/systemsharedmemory/region/{key}"
    try:
        _post(f"{region}/register", {"key": key, "byte_size": size})
        yield json.dumps({"inputs": [tensor], "outputs": [output], "parameters": parameters}).encode()
        _post(f"{region}/unregister", {})
    finally:
        path.unlink()


def _post(url: str, body: dict[str, object]) -> None:
    with urlopen(Request(url, json.dumps(body).encode(), method="POST")):
        pass


def main() -> None:
    """Serve in turn and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=MACHINE, help="scenario; machine: its own choice, fronts too")
    parser.add_argument("--fronts", type=int, nargs="*", default=[4])
    parser.add_argument("--images", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--plan", nargs="*", default=["1.0"])
    parser.add_argument("--mosec", type=int, nargs="*", default=[], help="numbers of workers")
    parser.add_argument("--batch", type=int, default=256, help="most images of a peer's batch")
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--port", type=int, default=18400)
    parser.add_argument("--wrk", default="wrk")
    parser.add_argument("--h2load", default="h2load")
    parser.add_argument("--shared-memory", action="store_true")
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--serve", nargs="*", default=[], help="further options of slim serve, without --")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    pixels = np.random.default_rng(0).integers(256, size=(max(options.images), 3, 32, 32)).astype(np.uint8)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for fronts in options.fronts:
            command = serve_command(options.config, fronts, options.port)
            command += [f"--{one}" for one in options.serve]
            command += ["--shared-memory"] if options.shared_memory else []
            with running(command, f"{url}/v2/health/ready", log) as root:
                for plan in options.plan:
                    for images in options.images:
                        given = {} if plan == "any" else {"plan": plan}
                        body, json_bytes = write_request({"images": pixels[:images]}, ("classes",), given)
                        row = measure(url, root, body, json_bytes, PATH, images, options)
                        about = {"server": "ours", "fronts": fronts, "plan": plan}
                        print(json.dumps({**about, **row}), flush=True)
                        if options.grpc:
                            call = write_call("slimresnet", pixels[:images], given)
                            address = f"127.0.0.1:{options.port + 1}"
                            row = measure_grpc(address, url, root, call, images, options)
                            print(json.dumps({**about, "grpc": True, **row}), flush=True)
                        if options.shared_memory:
                            with shared(url, pixels[:images], given) as small:
                                row = measure(url, root, small, len(small), PATH, images, options)
                            print(json.dumps({**about, "shared_memory": True, **row}), flush=True)
        for workers in options.mosec:
            for plan in options.plan:
                for images in options.images:
                    command = [sys.executable, str(HERE / "peers" / "with_mosec_cuda.py")]
                    setting = (options.port, plan, workers, images, options.batch)
                    os.environ["SLIM_MOSEC"] = " ".join(map(str, setting))
                    with running(command, f"{url}/", log) as root:
                        row = measure(url, root, pixels[:images].tobytes(), 0, "/inference", images, options)
                        print(
                            json.dumps({"server": "mosec", "workers": workers, "plan": plan, **row}),
                            flush=True,
                        )


if __name__ == "__main__":
    main()
