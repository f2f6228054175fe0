"""The server's promise: no accepted request is lost when a server stops or dies or a client leaves."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from served import Served

Images = NDArray[np.uint8]


def body_of(images: Images) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "images",
                    "shape": list(images.shape),
                    "datatype": "UINT8",
                    "parameters": {"binary_data_size": images.nbytes},
                }
            ],
            "outputs": [{"name": "classes"}],
        }
    ).encode()
    return head + images.tobytes(), {"inference-header-content-length": str(len(head))}


class Load:
    """Several clients in closed loop that keep every status."""

    def __init__(self, address: str, images: Images, clients: int = 8) -> None:
        self.statuses: list[int] = []
        self.broken = 0
        self.refused = 0
        self._address, self._images = address, images
        self._go_on = True
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._go_on = False
        for thread in self._threads:
            thread.join()

    def wait_for(self, answers: int) -> None:
        while len(self.statuses) < answers:
            time.sleep(0.01)

    def _client(self) -> None:
        body, headers = body_of(self._images)
        while self._go_on:
            connection = http.client.HTTPConnection(self._address, timeout=60)
            try:
                connection.connect()
            except OSError:
                self.refused += 1
                time.sleep(0.01)
                continue
            try:
                while self._go_on:
                    connection.request("POST", "/v2/models/slimresnet/infer", body=body, headers=headers)
                    response = connection.getresponse()
                    response.read()
                    self.statuses.append(response.status)
                    if response.getheader("connection") == "close":
                        break
            except (OSError, http.client.HTTPException):
                self.broken += 1
            finally:
                connection.close()


@pytest.mark.parametrize("fronts", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_sigterm_under_load_answers_every_accepted_request(
    own_server: Callable[..., Served], images: Images, fronts: str
) -> None:
    served = own_server("--fronts", fronts)
    load = Load(served.http, images[:2])
    load.wait_for(40)
    assert served.stop() == 0
    load.stop()
    assert set(load.statuses) <= {200, 503}, "accepted ones are answered, later ones refused"
    assert load.statuses.count(200) >= 40
    assert not any(os.path.exists(f"/proc/{pid}") for pid in served.children())


@pytest.mark.parametrize("fronts", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_a_killed_server_process_costs_no_request(
    own_server: Callable[..., Served], images: Images, fronts: str
) -> None:
    served = own_server("--fronts", fronts)
    load = Load(served.http, images[:2])
    load.wait_for(20)
    before = served.children()
    os.kill(before[0], signal.SIGKILL)
    load.wait_for(len(load.statuses) + 40)
    load.stop()
    assert set(load.statuses) == {200}
    assert load.broken == 0
    give_up_s = time.monotonic() + 60
    while len(served.children()) < 2 and time.monotonic() < give_up_s:
        time.sleep(0.1)
    assert len(served.children()) == 2, "and it is started again"
    assert served.stop() == 0


@pytest.mark.parametrize("fronts", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_work_of_a_client_that_leaves_is_cancelled(
    own_server: Callable[..., Served], images: Images, fronts: str
) -> None:
    served = own_server("--fronts", fronts)
    host, port = served.http.split(":")
    body, headers = body_of(np.repeat(images, 8, axis=0))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n"
    )
    began_s = time.monotonic()
    for _ in range(40):  # 2,560 images: far more than can be served in the time allowed below
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(head.encode() + body)
    small, headers = body_of(images[:1])
    connection = http.client.HTTPConnection(served.http, timeout=120)
    connection.request("POST", "/v2/models/slimresnet/infer", body=small, headers=headers)
    assert connection.getresponse().status == 200
    assert time.monotonic() - began_s < 30
    assert served.stop() == 0


@pytest.mark.parametrize("arguments", [["serve", "--http-port", "0", "--grpc-port", "0"], ["demo"]])
def test_ctrl_c_while_the_servers_start_ends_quietly(arguments: list[str], tmp_path: Path) -> None:
    heed = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # background jobs do not
    )
    command = [sys.executable, "-c", heed + "from slimsched.cli.app import main; main()", *arguments]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=tmp_path, start_new_session=True)
    started = Served(process, "", "", tmp_path / "out")
    while len(servers := started.children()) < 2:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    assert process.wait(timeout=60) in (0, 130)
    assert "Traceback" not in (tmp_path / "out").read_text()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in servers)
