"""A machine that is full: servers that get no core are late, and neither ended nor taken for hung."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
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
def full(cores: Iterable[int], loops: int) -> Iterator[None]:
    """Hold these cores with busy loops, so many on each."""
    processes = []
    try:
        for core in [core for core in cores for _ in range(loops)]:
            processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(processes[-1].pid, {core})
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def put_last(pid: int, core: int) -> None:
    """Bind a process to one core, where everything else goes first: 341 times as much as this for each other.

    So the busy loops are of a higher priority, and nobody needs a permission for that.
    """
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})
        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def asked(served: Served) -> Iterator[set[str]]:
    """Ask for the states of the servers now and then; all that were seen."""
    seen: set[str] = set()
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.5):
            waits = served.metric("slim_server_waits_for_core")
            seen.update(f"{state}; {waits:g} wait" for state in states(served).values())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def states(served: Served) -> dict[str, str]:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("GET", "/v2/health/ready")
    return dict(json.loads(connection.getresponse().read())["servers"])


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
@pytest.mark.timeout(5 * SECONDS + 200)
@pytest.mark.parametrize("is_last", [False, True], ids=["load ten", "higher priority"])
def test_on_a_full_machine_answers_are_late_and_no_server_is_ended(
    own_server: Callable[..., Served], is_last: bool
) -> None:
    served = own_server()
    servers = served.children()
    cores = sorted(set.union(*map(cores_of, servers)))
    if is_last:
        cores = cores[-1:]  # the gateway and this test need one, too
        for pid in servers:
            put_last(pid, cores[0])
    before_s = [waits_s(pid) for pid in servers]
    with light_load(served) as calls, asked(served) as seen, full(cores, 12 if is_last else 5):
        time.sleep(SECONDS)
    log = served.log.read_text()
    report("higher priority" if is_last else "load ten", calls, log)
    assert served.children() == servers, log
    assert " ended: " not in log
    assert {status for status, _ in calls} == {200}, "none is lost"
    waited_s = [waits_s(pid) - before for pid, before in zip(servers, before_s, strict=True)]
    assert max(waited_s) > 0.2 * SECONDS, "they did wait for a core"
    if is_last:
        assert re.search(r"server \w+ has waited 5 s for a core: this machine is full \(load [\d.]+ on", log)
        assert re.search(r"server \w+ waits for a core no longer, after \d+ s", log)
        waiting = "up, but it waits for a core: this machine is full; "
        assert any(state.startswith(waiting) and not state.endswith(" 0 wait") for state in seen), seen
    assert states(served) == {"one": "up", "two": "up"}
    assert served.stop() == 0
