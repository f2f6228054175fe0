"""A machine that is full: servers that get no core are late, and neither ended nor taken for hung."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from served import Served

SECONDS = float(os.environ.get("SLIM_FULL_S", "30"))
"""How long the machine stays full."""

IMAGES = np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32), dtype=np.uint8)
SPEC = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "data": IMAGES.ravel().tolist()}
BODY = json.dumps({"inputs": [SPEC], "outputs": [{"name": "classes"}]})
CLIENTS, PAUSE_S = 3, 0.2


def page(served: Served, path: str) -> str:
    connection = http.client.HTTPConnection(served.http, timeout=SECONDS + 60)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


@contextmanager
def light_load(served: Served) -> Iterator[list[tuple[int, float]]]:
    """A few clients that ask now and then; the status and the seconds of each call, complete afterwards."""
    seen: list[tuple[int, float]] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.wait(PAUSE_S):
            began_s = time.monotonic()
            connection = http.client.HTTPConnection(served.http, timeout=SECONDS + 120)
            connection.request("POST", "/v2/models/slimresnet/infer", BODY)
            response = connection.getresponse()
            response.read()
            seen.append((response.status, time.monotonic() - began_s))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def full(cores: Sequence[int], loops: int, niceness: int) -> Iterator[None]:
    """Hold these cores with busy loops, so many on each."""
    processes = []
    try:
        for core in cores:
            for _ in range(loops):
                process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                processes.append(process)
                os.sched_setaffinity(process.pid, {core})
                os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cores_of(pid: int) -> set[int]:
    return set(os.sched_getaffinity(pid))


def waits_s(pid: int) -> float:
    """For how long a process has waited for cores that it got at last."""
    return sum(int(one.read_text().split()[1]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def report(kind: str, seen: list[tuple[int, float]], log: str) -> None:
    took = np.array([took_s for _, took_s in seen])
    print(
        f"{kind}: {SECONDS:g} s, {len(seen)} calls, median {np.median(took):.2f} s, "
        f"p95 {np.percentile(took, 95):.2f} s, longest {took.max():.2f} s; "
        f"{log.count(' for a core: ')} lines about full machines"
    )


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(10 * SECONDS + 200)
@pytest.mark.parametrize(("loops", "niceness"), [(5, 0), (2, -10)], ids=["load ten", "higher priority"])
def test_on_a_full_machine_answers_are_late_and_no_server_is_ended(
    own_server: Callable[..., Served], loops: int, niceness: int
) -> None:
    served = own_server()
    servers = served.children()
    cores = sorted(set.union(*map(cores_of, servers)))
    if niceness:
        cores = cores[-1:]  # the gateway and this test need one, too
        for pid in servers:
            os.sched_setaffinity(pid, set(cores))
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), set(cores))
    before_s = [waits_s(pid) for pid in servers]
    try:
        with light_load(served) as seen, full(cores, loops, niceness):
            time.sleep(SECONDS)
    except PermissionError:
        pytest.skip("this user may not raise a priority")
    log = served.log.read_text()
    report(f"{loops} loops of niceness {niceness}", seen, log)
    assert served.children() == servers, log
    assert "ended" not in log
    assert {status for status, _ in seen} == {200}, "none is lost"
    waited_s = [waits_s(pid) - before for pid, before in zip(servers, before_s, strict=True)]
    assert max(waited_s) > 0.3 * SECONDS, "they did wait for a core"
    assert json.loads(page(served, "/v2/health/ready"))["servers"] == {"one": "up", "two": "up"}
    assert served.stop() == 0


def starved_line(log: str) -> bool:
    return bool(
        re.search(r"server \w+ has waited 5 s for a core: this machine is full \(load [\d.]+ on", log)
    )
