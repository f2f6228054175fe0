"""Several gateways on the same servers: each gets its own answers, and one's death is nobody else's."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tritonclient.http as triton
from geventhttpclient.response import HTTPConnectionClosed
from msgspec import Struct
from numpy.typing import NDArray

pytest.importorskip("ray")

import ray

from raylets import LATE, Raylets, start
from served import Served, serve
from serving.ray.conftest import SHARED
from slimsched.serving.live.wire import Drain, Fetch
from slimsched.serving.ray.engine import RayError, connect
from slimsched.serving.ray.messages import Hello


@pytest.fixture
def second(served: Served, raylets: Raylets, tmp_path: Path) -> Iterator[Served]:
    """Another gateway on the servers of the first."""
    running = serve(tmp_path, "--engine", "ray", "--address", raylets.address, "--attach", SHARED)
    yield running
    running.process.kill()
    running.process.wait()


class Client(threading.Thread):
    """Asks one gateway, and the other when that one is gone."""

    def __init__(self, gateways: list[str], images: NDArray[np.uint8], times: int) -> None:
        super().__init__()
        self.gateways, self.images, self.times = gateways, images, times
        self.answers: list[list[int]] = []
        self.turned = 0
        self.begun = threading.Event()

    def run(self) -> None:
        for _ in range(self.times):
            self.answers.append(self._ask())
            self.begun.set()

    def _ask(self) -> list[int]:
        tensor = triton.InferInput("images", list(self.images.shape), "UINT8")
        tensor.set_data_from_numpy(self.images)
        try:
            return self._classes(tensor)
        except (OSError, HTTPConnectionClosed):
            self.turned += 1
            self.gateways = self.gateways[::-1]
            return self._classes(tensor)

    def _classes(self, tensor: object) -> list[int]:
        client = triton.InferenceServerClient(self.gateways[0])
        found = client.infer("slimresnet", [tensor], parameters={"width": 1.0})
        return [int(one) for one in found.as_numpy("classes")]


def test_when_a_gateway_is_killed_its_clients_are_answered_by_the_other(
    served: Served, second: Served, images: NDArray[np.uint8]
) -> None:
    clients = [Client([second.http, served.http], images, 40) for _ in range(2)]
    clients += [Client([served.http, second.http], images, 40)]
    for client in clients:
        client.start()
    for client in clients:
        assert client.begun.wait(30)
    second.process.kill()
    for client in clients:
        client.join(60)
    answers = [answer for client in clients for answer in client.answers]
    assert len(answers) == 120
    assert all(answer == answers[0] for answer in answers)
    assert [client.turned for client in clients] == [1, 1, 0]


def test_an_operator_lists_the_servers_and_is_told_of_mistakes(served: Served, raylets: Raylets) -> None:
    where = ["--attach", SHARED, "--address", raylets.address]
    assert slim("servers", "list", "--json", *where).stdout.strip() == '{"one": true, "two": true}'
    assert "unknown server 'six'; known: one, two" in slim("servers", "drain", "six", *where).stderr
    nobody = slim("servers", "list", "--attach", "elsewhere", "--address", raylets.address)
    assert "nobody serves in namespace 'elsewhere'" in nobody.stderr


def slim(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("words", [Hello(secret="guessed", gateway=1), Fetch(requests=[1]), Drain()])
def test_who_does_not_know_the_secret_is_not_let_in(served: Served, raylets: Raylets, words: Struct) -> None:
    connect(raylets.address, SHARED)
    address = ray.get(ray.get_actor("server one", SHARED).address.remote())
    host, _, port = address.rpartition(":")
    body = msgspec.msgpack.encode(words)
    with socket.create_connection((host, int(port)), timeout=10) as door:
        door.sendall(len(body).to_bytes(4, "little") + body)
        assert door.recv(1) == b""


def test_a_gateway_with_other_servers_cannot_join(served: Served, raylets: Raylets, tmp_path: Path) -> None:
    with pytest.raises(RayError, match="the cluster there has servers one, two; use the same scenario"):
        asyncio.run(start(raylets, tmp_path, extra=LATE, namespace=SHARED))
