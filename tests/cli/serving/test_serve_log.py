"""`slim serve --log`: what a live server decided under load can be replayed, decision by decision."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from attacks import RESET
from command_line import CliRunner
from logs import entries
from served import Served
from slimsched.serving.api.client.client import Client, ServerRefusedError
from slimsched.serving.gateway.messages import Drop, GoalChanged, RequestsCancelled, RequestsRefused

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)


def replayed(folder: Path) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(["replay", str(folder), "--json"])
    return done.exit_code, json.loads(done.stdout)


def load(served: Served, calls: int) -> int:
    def call(number: int) -> int:
        with Client(f"http://{served.http}") as client:
            asked = {"deadline_ms": 1} if number % 7 == 0 else {"priority": number % 2}
            try:
                return len(client.classify(IMAGES, **asked).classes)  # type: ignore[arg-type]
            except Exception:
                return 0

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(call, range(calls)))


def give_up(served: Served, count: int) -> None:
    """Send calls and hang up before they are answered."""
    for _ in range(count):
        connection = http.client.HTTPConnection(served.http, timeout=10)
        tensor = {
            "name": "images",
            "shape": [8, 3, 32, 32],
            "datatype": "UINT8",
            "data": IMAGES.ravel().tolist(),
        }
        connection.request("POST", "/v2/models/slimresnet/infer", json.dumps({"inputs": [tensor]}))
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()


def put_goal(served: Served, goal: str) -> int:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("PUT", "/v2/goal", json.dumps({"goal": goal}))
    return connection.getresponse().status


def test_a_server_under_load_can_be_replayed_to_the_last_decision(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    served = own_server("--log", str(logs))
    assert load(served, 20) > 0
    assert put_goal(served, "accuracy>=70, p99<=80ms, min energy") == 200
    give_up(served, 4)
    assert load(served, 20) > 0
    killed = served.children()[0]
    os.kill(killed, signal.SIGKILL)
    while "is down" not in served.log.read_text():
        time.sleep(0.05)
    give_up_s = time.monotonic() + 60
    while served.log.read_text().count("is up") < 3 and time.monotonic() < give_up_s:
        time.sleep(0.1)
    load(served, 10)
    assert served.stop() == 0
    code, found = replayed(logs)
    assert code == 0, found
    assert found["same"]
    assert found["machines"] == 4, "the gateway, two servers, and the second life of one"
    ends = {name.partition("/")[2]: one["ended"] for name, one in found["logs"].items()}  # type: ignore[attr-defined]
    assert ends["events.jsonl.gz"] == "closed"
    assert sorted(ends.values()) == ["closed", "closed", "closed", "killed"]
    (gateway,) = logs.glob("*/events.jsonl.gz")
    log = entries(gateway)
    assert sum(isinstance(entry.event, GoalChanged) for entry in log) == 1
    assert any(isinstance(entry.event, RequestsCancelled) for entry in log)
    assert any(isinstance(command, Drop) for entry in log for command in entry.commands)
    said = CliRunner().invoke(["replay", str(logs)]).stdout
    assert "its process was killed" in said
    assert "all are equal" in said


def test_a_queue_that_is_too_long_is_refused_and_the_log_replays(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    served = own_server("--log", str(logs), "--limit", "queue_s=0.05", "--fronts", "1")
    images = np.repeat(IMAGES, 8, axis=0)

    def call(number: int) -> ServerRefusedError | None:
        with Client(f"http://{served.http}") as client:
            try:
                client.classify(images, plan="1.0")
            except ServerRefusedError as refused:
                return refused
            return None

    with ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(call, range(48)))
    assert None in ends, "what was accepted is answered"
    errors = [one for one in ends if one is not None]
    assert errors
    assert all(one.status == 429 and (one.retry_after_s or 0.0) >= 1.0 for one in errors)
    assert served.stop() == 0
    code, found = replayed(logs)
    assert code == 0, found
    (gateway,) = logs.glob("*/events.jsonl.gz")
    refused = [one.event for one in entries(gateway) if isinstance(one.event, RequestsRefused)]
    assert refused, "the gateway knows how many the door refused"


def test_a_log_that_reaches_its_limit_stops_and_says_so(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    served = own_server("--log", str(tmp_path / "logs"), "--log-limit", "0.01")
    load(served, 30)
    give_up_s = time.monotonic() + 30
    while "event log stops" not in served.log.read_text() and time.monotonic() < give_up_s:
        load(served, 10)
    assert "the gateway's event log stops: it has reached its limit" in served.log.read_text()
    connection = http.client.HTTPConnection(served.http, timeout=10)
    connection.request("GET", "/metrics")
    assert "slim_event_log_full 1" in connection.getresponse().read().decode()
    assert served.stop() == 0
    code, found = replayed(tmp_path / "logs")
    assert code == 0, found
