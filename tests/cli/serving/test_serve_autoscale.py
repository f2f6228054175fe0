"""`slim serve` with [autoscale] on this machine: servers start when it is crowded, and leave when idle."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import served as serving
from command_line import CliRunner
from logs import entries
from served import Served
from slimsched.serving.api.client.client import Client

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 3, 32, 32), dtype=np.uint8)
AUTOSCALE = """
[autoscale]
min = 1
up_backlog_s = 0.01
up_after_s = 0.0
down_idle_s = 1.0
cooldown_s = 0.5
"""


def test_a_server_joins_when_it_is_crowded_and_leaves_when_it_is_idle(
    own_server: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, server, rest = serving.CONFIG.partition("[[server]]")
    monkeypatch.setattr(serving, "CONFIG", head + AUTOSCALE + server + rest)
    logs = tmp_path / "logs"
    served = own_server("--log", str(logs))
    assert len(served.children()) == 1

    def call(_: int) -> int:
        with Client(f"http://{served.http}") as client:
            return len(client.classify(IMAGES, plan="1.0").classes)

    give_up_s = time.monotonic() + 60
    with ThreadPoolExecutor(8) as pool:
        while "server two is up" not in served.log.read_text() and time.monotonic() < give_up_s:
            assert sum(pool.map(call, range(24))) == 24 * 32
    assert "server two is up" in served.log.read_text()
    while len(served.children()) > 1 and time.monotonic() < give_up_s + 30:
        time.sleep(0.1)
    assert "server two is down" in served.log.read_text()
    assert len(served.children()) == 1
    assert served.stop() == 0
    found = json.loads(CliRunner().invoke(["replay", str(logs), "--json"]).stdout)
    assert found["same"]
    (gateway,) = logs.glob("*/events.jsonl.gz")
    steps = [c.servers for e in entries(gateway) if e.machine == "autoscaler" for c in e.commands]
    assert steps[0] == 2
    assert steps[-1] == 1
