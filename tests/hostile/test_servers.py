"""Servers that die, hang or never start: they are noticed, replaced or given up, and it is always said."""

import http.client
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from command_line import CliRunner
from served import CONFIG, Served
from stamped import stamped_folder

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
SPEC = {"name": "images", "shape": [2, 3, 32, 32], "datatype": "UINT8", "data": IMAGES.ravel().tolist()}
LATE_S = 0.3  # 50 ms are promised; the rest is for a busy machine


def ask(served: Served, method: str, path: str, body: object = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(served.http, timeout=90)
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    return response.status, response.read().decode()


def infer(served: Served, **terms: float) -> tuple[int, str, float]:
    """Status, body and seconds of one call."""
    began_s = time.monotonic()
    body = {"inputs": [SPEC], "parameters": terms, "outputs": [{"name": "classes"}]}
    status, text = ask(served, "POST", "/v2/models/slimresnet/infer", body)
    return status, text, time.monotonic() - began_s


def wait_until(holds: Callable[[], bool], limit_s: float = 90.0) -> float:
    """Wait, and return how long it took."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < limit_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - began_s


def states(served: Served) -> dict[str, str]:
    status, text = ask(served, "GET", "/v2/health/ready")
    return dict(json.loads(text)["servers"]) if status == 200 else {}


def both_up(served: Served) -> bool:
    return states(served) == {"one": "up", "two": "up"}


@contextmanager
def load(served: Served, **terms: float) -> Iterator[list[tuple[int, str, float]]]:
    """Four clients in closed loop; what they got is complete afterwards."""
    seen: list[tuple[int, str, float]] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            seen.append(infer(served, **terms))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_a_server_comes_back_from_every_death(own_server: Callable[..., Served]) -> None:
    served = own_server()
    deaths = int(os.environ.get("SLIM_DEATHS", "7"))
    for death in range(1, deaths + 1):
        os.kill(max(served.children()), signal.SIGKILL)
        wait_until(lambda death=death: served.log.read_text().count("killed by SIGKILL") == death)  # type: ignore[misc]
        wait_until(lambda: both_up(served))
        assert served.log.read_text().count(" is back after ") == death
    assert infer(served)[0] == 200
    assert served.stop() == 0


@pytest.mark.slow
def test_a_hung_server_is_noticed_and_its_requests_are_done_elsewhere(
    own_server: Callable[..., Served],
) -> None:
    served = own_server()
    with load(served) as patient, load(served, deadline_ms=500) as hasty:
        wait_until(lambda: len(patient) > 8 and len(hasty) > 8)
        os.kill(served.children()[0], signal.SIGSTOP)
        noticed_s = wait_until(lambda: "it did not answer" in served.log.read_text())
        wait_until(lambda: served.log.read_text().count(" is back after ") == 1)
        done = len(patient)
        wait_until(lambda: len(patient) > done + 8)
    assert noticed_s < 2.0 + LATE_S
    assert {status for status, _, _ in patient} == {200}
    assert max(took_s for _, _, took_s in patient) < 20.0
    assert {status for status, _, _ in hasty} <= {200, 429, 504}, (
        "in time, refused at the door, or ended at its deadline"
    )
    assert max(took_s for _, _, took_s in hasty) < 0.5 + LATE_S
    assert both_up(served)
    assert served.stop() == 0


@pytest.mark.slow
def test_a_server_whose_model_keeps_pythons_lock_is_busy_and_not_hung(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    model = stamped_folder(tmp_path / "cats", stamp=3.0)
    code, line = model / "model.py", "stamp = torch.full_like(total, STAMP)"  # one call keeps the lock
    slow = "\n            if total.max() > 1e6: sum(range(3 * 10**8))"
    code.write_text(code.read_text().replace(line, line + slow))
    config = tmp_path / "cats.toml"
    config.write_text(CONFIG + f'[[model]]\nsource = "{model}"\n')
    served = own_server("--config", str(config))
    call = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1e7] * 4}]}
    began_s = time.monotonic()
    assert ask(served, "POST", "/v2/models/cats/infer", call)[0] == 200
    assert time.monotonic() - began_s > 2.0, "longer than a hung server is given"
    assert "did not answer" not in served.log.read_text()
    assert served.stop() == 0


@pytest.mark.slow
def test_sigterm_ends_in_time_though_all_servers_hang(own_server: Callable[..., Served]) -> None:
    served = own_server()
    with ThreadPoolExecutor(4) as pool:
        for pid in served.children():
            os.kill(pid, signal.SIGSTOP)
        calls = [pool.submit(infer, served) for _ in range(4)]
        time.sleep(0.2)
        began_s = time.monotonic()
        assert served.stop(patience_s=40) == 0
        assert time.monotonic() - began_s < 30
        assert {call.result()[0] for call in calls} <= {200, 503}


@pytest.mark.slow
def test_a_second_signal_ends_at_once(own_server: Callable[..., Served]) -> None:
    served = own_server()
    servers = served.children()
    with ThreadPoolExecutor(1) as pool:
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
        call = pool.submit(infer, served)
        time.sleep(0.2)
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in served.log.read_text())
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=10) == 1, "not everything was answered"
        with pytest.raises((OSError, http.client.HTTPException)):
            call.result()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers), 5)


@pytest.mark.slow
def test_servers_that_cannot_start_are_given_up_and_everyone_is_told(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    model = stamped_folder(tmp_path / "cats", stamp=3.0)
    config = tmp_path / "cats.toml"
    config.write_text(CONFIG + f'[[model]]\nsource = "{model}"\n')
    served = own_server("--config", str(config))
    call = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    assert ask(served, "POST", "/v2/models/cats/infer", call)[0] == 200
    shutil.rmtree(model)  # no server can start from now on
    with ThreadPoolExecutor(2) as pool:
        for pid in served.children():
            os.kill(pid, signal.SIGSTOP)  # so that calls are accepted and wait
        waiting = [pool.submit(ask, served, "POST", "/v2/models/cats/infer", call) for _ in range(2)]
        wait_until(lambda: served.log.read_text().count("was given up") >= 2, 180)
        for status, text in [one.result(timeout=5) for one in waiting]:
            assert status == 503
            assert "no server is left" in text
    for method, path, body in (
        ("GET", "/v2/health/ready", None),
        ("POST", "/v2/models/cats/infer", call),
    ):
        status, text = ask(served, method, path, body)
        assert status == 503
        assert "one ended 5 times before it was ready (exit code 3) and was given up" in text
        assert "being started" not in text
    page = ask(served, "GET", "/metrics")[1]
    assert 'slim_server_given_up{server="one"} 1' in page
    began_s = time.monotonic()
    assert served.stop() == 0
    assert time.monotonic() - began_s < 10


@pytest.mark.slow
def test_a_run_with_killed_and_hung_servers_can_be_replayed(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    served = own_server("--log", str(tmp_path / "logs"))
    with load(served) as patient, load(served, deadline_ms=300):
        wait_until(lambda: len(patient) > 4)
        first, second = served.children()
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: "it did not answer" in served.log.read_text())
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: served.log.read_text().count(" is back after ") == 2)
    assert served.stop() == 0
    done = CliRunner().invoke(["replay", str(tmp_path / "logs"), "--json"])
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["same"]
