"""perf_analyzer and the clients of PyTriton and KServe, unchanged; `scripts/other-tools` fetches them."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray

from served import Served

pytestmark = pytest.mark.slow
CLIENTS = Path(__file__).parents[2] / "other_clients.py"
WAYS = {
    "http": ("-i", "http"),
    "http, JSON": ("-i", "http", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "grpc": ("-i", "grpc"),
    "grpc, streaming": ("-i", "grpc", "--streaming"),
    "http, shared memory": ("-i", "http", "--shared-memory", "system", "--output-shared-memory-size", "1024"),
    "grpc, shared memory": ("-i", "grpc", "--shared-memory", "system", "--output-shared-memory-size", "1024"),
}


def need(tool: str) -> Path:
    """Return where a tool is; without it the test is skipped, or fails where it must be."""
    folder = os.environ.get("SLIM_OTHER_TOOLS")
    if folder is None:
        pytest.skip("SLIM_OTHER_TOOLS is not set; scripts/other-tools FOLDER fetches them")
    assert (Path(folder) / "ready").exists(), f"{folder} has no tools; see scripts/other-tools"
    return Path(folder) / tool


class Watch:
    """Looks at /metrics all the time: how many examples were answered, and how long they waited and ran."""

    def __init__(self, served: Served) -> None:
        self._served, self._is_over = served, Event()
        self.seen: list[list[float]] = []
        self._thread = Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        names = ("queue_seconds_count", "queue_seconds_sum", "compute_seconds_sum")
        while not self._is_over.wait(0.05):
            text = self._served.page("/metrics")
            found = [re.search(rf"^slim_image_{name} (\S+)$", text, re.M) for name in names]
            self.seen.append([float(one[1]) for one in found if one])

    def means_us(self, count: float) -> list[tuple[float, float]]:
        """Mean waiting and computing of each stretch with this number of examples, give or take 2 %."""
        rows = np.array(self.seen)
        pairs = [after - rows[:place] for place, after in enumerate(rows)]
        fitting = [row for rows in pairs for row in rows if row[0] and abs(row[0] - count) <= count / 50]
        return [(1e6 * queue_s / n, 1e6 * compute_s / n) for n, queue_s, compute_s in fitting]


@pytest.mark.parametrize("way", WAYS)
def test_perf_analyzer_agrees_with_the_metrics_page(way: str, own_server: Callable[..., Served]) -> None:
    tool = need("perf_analyzer")
    served = own_server("--shared-memory")
    address = served.grpc if "grpc" in way else served.http
    for concurrency in (1, 8, 64):
        command = [
            tool,
            "-m",
            "slimresnet",
            "-u",
            address,
            *WAYS[way],
            "--concurrency-range",
            str(concurrency),
        ]
        command += ["--measurement-mode", "count_windows", "--measurement-request-count", "100"]
        command += ["-s", "999", "-r", "3"]  # no wish for a calm machine
        with Watch(served) as watch:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "rror" not in said, said
        count, queue_us, compute_us = (
            float(re.search(rf"{what}:? (\d+)", said)[1])  # type: ignore[index]
            for what in ("Successful request count", r"\+ queue", r"\+ compute infer")
        )
        gap = min(
            max(abs(a - queue_us) / queue_us, abs(b - compute_us) / compute_us)
            for a, b in watch.means_us(count)
        )
        assert gap < 0.02, f"{said}: /metrics has no stretch of {count} requests with these times"
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()


@pytest.mark.parametrize("package", ["pytriton", "kserve"])
def test_other_clients_get_the_same_classes(
    package: str, served: Served, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    python = need("clients") / "bin" / "python"
    np.save(tmp_path / "images.npy", images)
    command = [python, CLIENTS, package, served.http, served.grpc, tmp_path / "images.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tensor = triton.InferInput("images", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    client = triton.InferenceServerClient(served.http)
    wanted = client.infer("slimresnet", [tensor], parameters={"plan": "0.5"}).as_numpy("classes").tolist()
    for way, classes in json.loads(done.stdout.splitlines()[-1]).items():
        if not way.endswith("asyncio"):  # which takes no parameters
            assert classes == wanted[: len(classes)], way
        assert len(classes) in (1, len(images)), way
