"""How much of a model's bare speed the server keeps: fixed plans, offline loop and server in turn.

    python benchmarks/models.py --model DIR [--plan PLAN ...] [--images 8 ...] [--device cuda] [--rounds 3]

The offline loop runs the model's own segments as fast as it can, without a server: one process per core on a
CPU, several lanes on a GPU. wrk asks the server for the same plan over HTTP, in a closed loop. Both are
measured in turn, so that a machine's drift touches both. A GPU's utilization is read while each runs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from running import SLIM, running, scenario_options
from wrk import run_wrk

from slimsched.models.spec import Path as Plan
from slimsched.serving.api.client.client import write_request
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.live.engine import KEEP_MEMORY
from slimsched.serving.live.executor import CpuExecutor
from slimsched.serving.live.server import host_models
from slimsched.serving.measure.examples import made_up_examples
from slimsched.serving.scenario.files import read_model

HERE = Path(__file__).parent
LANES = 4
_state: dict[str, Any] = {}


def offline_cpu(source: str, plan: Plan, batch: int, seconds: float, cores: int) -> float:
    """Examples per second of one process on each core."""
    context = get_context("spawn")
    together, free = context.Barrier(cores, timeout=300), context.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        free.put(core)
    os.environ.update(KEEP_MEMORY)  # as the servers have it
    with ProcessPoolExecutor(cores, context, _start, (source, plan, batch, together, free)) as pool:
        return sum(pool.map(_loop, [seconds] * cores))


def _start(source: str, plan: Plan, batch: int, together: Any, free: Any) -> None:
    os.sched_setaffinity(0, {free.get()})
    model = read_model(source, rated=False)
    executor = CpuExecutor(host_models([model], torch.device("cpu")), threads=1)
    _load(executor, model, plan)
    _state.update(executor=executor, keys=model.legs(plan), batch=batch, together=together)


def _loop(seconds: float) -> float:
    executor, keys, batch = _state["executor"], _state["keys"], _state["batch"]
    inputs = executor.example(keys[0], batch)
    _once(executor, keys, inputs)
    _state["together"].wait()
    began_s, done = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        _once(executor, keys, inputs)
        done += batch
    rate = done / (time.perf_counter() - began_s)
    _state["together"].wait()
    return rate


def _once(executor: Any, keys: Any, rows: Any) -> Any:
    for key in keys:
        rows = executor.run(key, rows)
    return rows


def _load(executor: Any, model: ServedModel, plan: Plan, lanes: int = 1) -> None:
    keys = model.legs(plan)
    for number in range(lanes * len(keys)):
        key = keys[number % len(keys)]
        executor.load(Instance(id=number, segment=key.segment, choice=key.choice, memory_bytes=0))


def offline_cuda(source: str, plan: Plan, batch: int, seconds: float) -> float:
    """Examples per second from host memory, several lanes on one device."""
    from slimsched.serving.live.cuda import CudaExecutor, cuda_device

    model = read_model(source, rated=False)
    executor = CudaExecutor(host_models([model], cuda_device()), buckets=(batch,), lanes=LANES)
    _load(executor, model, plan, LANES)
    keys = model.legs(plan)
    inputs = executor.example(keys[0], batch)
    _once(executor, keys, inputs)
    began_s = time.perf_counter()

    def work(_: int) -> int:
        done = 0
        while time.perf_counter() - began_s < seconds:
            _once(executor, keys, inputs)
            done += batch
        return done

    with ThreadPoolExecutor(LANES) as pool:
        done = sum(pool.map(work, range(LANES)))
    return done / (time.perf_counter() - began_s)


@contextmanager
def server(source: str, config: str, port: int, log: Path, fronts: int | None) -> Any:
    """`slim serve` with this model, in a process of its own."""
    models = [] if source == "slimresnet" else ["--model", source]
    command = [*SLIM, "serve", *models, *scenario_options(config)]
    command += ["--http-port", str(port), "--grpc-port", str(port + 1)]
    command += [] if fronts is None else ["--fronts", str(fronts)]
    with running(command, f"http://127.0.0.1:{port}/v2/health/ready", log):
        yield


def served_per_s(model: ServedModel, plan: Plan, images: int, options: argparse.Namespace) -> float:
    """Examples per second through the server, asked by wrk in a closed loop."""
    examples = made_up_examples(model.spec, count=images)
    inputs = {tensor.name: array for tensor, array in zip(model.spec.inputs, examples.inputs, strict=True)}
    outputs = (model.spec.outputs[0].name,)
    body, json_bytes = write_request(inputs, outputs, {"plan": model.spec.text(plan)})
    result = run_wrk(
        f"http://127.0.0.1:{options.port}",
        f"/v2/models/{model.name}/infer",
        body,
        json_bytes,
        connections=max(8, options.under_way // images),
        seconds=options.seconds,
        binary=options.wrk,
    )
    if result.failed:
        print(f"{result.failed} requests were refused or broken", file=sys.stderr)
    return result.per_s * images


class Utilization:
    """Mean utilization of the GPU while in use, by NVML; empty where there is none."""

    def __enter__(self) -> "Utilization":
        self._text = ""
        self._process = None
        if shutil.which("nvidia-smi"):
            self._process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"],
                stdout=subprocess.PIPE,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._text = self._process.communicate()[0]

    @property
    def percent(self) -> float | None:
        """The mean, without the first and the last fifth."""
        values = [float(line) for line in self._text.split() if line.strip().isdigit()]
        fifth = len(values) // 5
        return statistics.mean(values[fifth : len(values) - fifth]) if values else None


def main() -> None:
    """Measure the plans in turn and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="slimresnet", help="a model folder, or slimresnet")
    parser.add_argument("--plan", action="append", help="a plan; by default the narrowest and the widest")
    parser.add_argument(
        "--images", type=int, nargs="+", default=[8], help="examples per request, one or more"
    )
    parser.add_argument("--fronts", type=int, help="front processes; by default as slim serve decides")
    parser.add_argument("--batch", type=int, default=0, help="batch of the offline loop; 0: 32, on a GPU 64")
    parser.add_argument("--under-way", type=int, default=256, help="examples asked for at a time")
    parser.add_argument("--wrk", default="wrk", help="the program wrk")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--config", default="machine", help="scenario of the server; machine: its own choice")
    parser.add_argument("--port", type=int, default=18200)
    options = parser.parse_args()
    batch = options.batch or (32 if options.device == "cpu" else 64)
    with (
        TemporaryDirectory() as folder,
        server(options.model, options.config, options.port, Path(folder) / "log", options.fronts),
    ):
        model = read_model(options.model, rated=False)  # the server has measured what it lacks
        plans = [model.spec.path(text) for text in options.plan or ()]
        plans = plans or [model.spec.narrowest, model.spec.widest]
        for plan in plans:
            rounds = [_round(options, model, plan, batch) for _ in range(options.rounds)]
            for number, images in enumerate(options.images):
                rates = [(one[0][0], one[1][number][0]) for one in rounds]
                row = {
                    "model": model.name,
                    "plan": model.spec.text(plan),
                    "images": images,
                    "offline_per_s": round(statistics.median(offline for offline, _ in rates), 1),
                    "served_per_s": round(statistics.median(served for _, served in rates), 1),
                    "share": round(statistics.median(served / offline for offline, served in rates), 3),
                    "gpu_percent": [rounds[-1][0][1], rounds[-1][1][number][1]],
                }
                print(json.dumps(row), flush=True)


Rate = tuple[float, float | None]
"""Examples per second, and the GPU's utilization meanwhile."""


def _round(
    options: argparse.Namespace, model: ServedModel, plan: Plan, batch: int
) -> tuple[Rate, list[Rate]]:
    """Measure the offline loop, then the server with each number of examples per request."""
    with Utilization() as alone:
        if options.device == "cuda":
            offline = offline_cuda(options.model, plan, batch, options.seconds)
        else:
            offline = offline_cpu(options.model, plan, batch, options.seconds, os.cpu_count() or 1)
    served: list[Rate] = []
    for images in options.images:
        with Utilization() as behind:
            rate = served_per_s(model, plan, images, options)
        served.append((rate, behind.percent))
    return (offline, alone.percent), served


if __name__ == "__main__":
    main()
