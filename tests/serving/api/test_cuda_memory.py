"""Tensors in GPU memory of another process, over HTTP and gRPC: on a GPU, and on a stand-in for libcuda."""

import base64
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cuda_stand_in import CLIENT, CudaClient, build
from cuda_wire import GrpcWire, HttpWire, RefusedError, place
from served import Served, serve
from slimsched.serving.api.cuda_driver import SETTING

IMAGE_BYTES, CLASS_BYTES, LOGITS_BYTES = 3 * 32 * 32, 8, 100 * 4
COUNT = 8
SIZE = COUNT * (IMAGE_BYTES + CLASS_BYTES + LOGITS_BYTES)
REFUSED = ("400", "INVALID_ARGUMENT")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Setup(NamedTuple):
    """A server and the library that clients allocate with."""

    served: Served
    library: str
    is_real: bool


def start(folder: Path, library: str, *options: str) -> Served:
    """Start a server that uses this library for CUDA; an empty name stands for the real one."""
    with pytest.MonkeyPatch.context() as patch:
        if library:
            patch.setenv(SETTING, library)
        return serve(folder, "--shared-memory", *options)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("stand-in", "0"), id="stand-in-gateway"),
        pytest.param(("stand-in", "2"), id="stand-in-fronts"),
        pytest.param(("gpu", "0"), id="gpu-gateway", marks=needs_cuda),
        pytest.param(("gpu", "2"), id="gpu-fronts", marks=needs_cuda),
    ],
)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """A gateway that reads requests itself, or front processes that do it for it."""
    kind, fronts = request.param
    folder = tmp_path_factory.mktemp("served")
    library = build(folder) if kind == "stand-in" else ""
    served = start(folder, library, "--fronts", fronts)
    yield Setup(served, library, kind == "gpu")
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()


class Client:
    """A client with images on a GPU, and room for answers behind them."""

    def __init__(self, setup: Setup, protocol: str) -> None:
        self.setup, self.gpu = setup, CudaClient(setup.library)
        self.wire = {"http": HttpWire, "grpc": GrpcWire}[protocol](setup.served)
        self.address = self.gpu.allocate(SIZE)
        self.handle = self.gpu.handle(self.address)
        self.images = np.random.default_rng(3).integers(0, 256, (COUNT, 3, 32, 32)).astype(np.uint8)
        self.gpu.write(self.address, self.images.tobytes())

    def infer(self, count: int = COUNT, region: str = "mine") -> dict[str, Any]:
        """Infer from a region into the same region."""
        at = COUNT * IMAGE_BYTES
        return self.wire.infer(
            count,
            place(region, count * IMAGE_BYTES),
            {
                "classes": place(region, COUNT * CLASS_BYTES, at),
                "logits": place(region, COUNT * LOGITS_BYTES, at + COUNT * CLASS_BYTES),
            },
        )

    def answers(self, count: int = COUNT) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """What lies in the memory."""
        raw = self.gpu.read(self.address, SIZE)[COUNT * IMAGE_BYTES :]
        logits = np.frombuffer(raw[COUNT * CLASS_BYTES :], np.float32)[: count * 100]
        return np.frombuffer(raw, np.int64, count), logits.reshape(count, 100)

    def asked(self, count: int = COUNT) -> tuple[list[int], NDArray[np.float32]]:
        """The answers to the same images without shared memory."""
        data = self.images[:count].reshape(-1).tolist()
        tensor = {"name": "images", "shape": [count, 3, 32, 32], "datatype": "UINT8", "data": data}
        body = {"inputs": [tensor], "parameters": {"plan": "0.25"}}
        answer = HttpWire(self.setup.served).ask("POST", "/v2/models/slimresnet/infer", body)
        outputs = {one["name"]: one["data"] for one in answer["outputs"]}
        return outputs["classes"], np.array(outputs["logits"], np.float32).reshape(count, 100)

    def close(self) -> None:
        self.wire.unregister()
        if self.address:
            self.gpu.free(self.address)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, setup: Setup) -> Iterator[Client]:
    one = Client(setup, request.param)
    yield one
    one.close()


@pytest.mark.parametrize("count", [1, COUNT])  # in a message, and in the servers' own shared memory
def test_inputs_and_outputs_lie_on_the_gpu(client: Client, count: int) -> None:
    client.wire.register("mine", client.handle, SIZE)
    written = client.infer(count)
    at = COUNT * IMAGE_BYTES
    assert written["classes"] == place("mine", count * CLASS_BYTES, at)
    assert written["logits"] == place("mine", count * LOGITS_BYTES, at + COUNT * CLASS_BYTES)
    classes, logits = client.answers(count)
    wanted_classes, wanted_logits = client.asked(count)
    assert classes.tolist() == wanted_classes
    np.testing.assert_allclose(logits, wanted_logits, rtol=1e-3, atol=1e-3)


def test_regions_are_listed_and_forgotten_by_name(client: Client) -> None:
    client.wire.register("mine", client.handle, SIZE)
    client.wire.register("half", client.handle, SIZE // 2)  # the same memory again
    assert client.wire.listed() == {"mine": (0, SIZE), "half": (0, SIZE // 2)}
    assert client.wire.listed("half") == {"half": (0, SIZE // 2)}
    with pytest.raises(RefusedError, match="'mine' is registered already; unregister it first"):
        client.wire.register("mine", client.handle, SIZE)
    HttpWire(client.setup.served).ask("POST", "/v2/systemsharedmemory/unregister")  # not of this kind
    client.wire.unregister("half")
    client.wire.unregister("half")  # nothing is left to do
    for _ in range(6):  # at any front
        assert client.infer(1)
        with pytest.raises(RefusedError, match="no shared memory region 'half' is registered"):
            client.infer(1, "half")
    client.wire.unregister()
    assert client.wire.listed() == {}
    with pytest.raises(RefusedError, match="no shared memory region 'mine' is registered"):
        client.wire.listed("mine")


def test_what_cannot_be_registered_is_refused(client: Client) -> None:
    changed = bytearray(client.handle)
    changed[12] ^= 0x0F
    for handle, size, device, says in (
        (client.handle[:-1], SIZE, 0, "raw_handle has 63 bytes, a CUDA IPC handle has 64"),
        (client.handle, 2**38, 0, "bytes, 17179869184 are the limit"),
        (client.handle, 2**33, 0, "but byte_size is 8589934592; give less, or allocate more"),
        (client.handle, SIZE, 99, "device_id 99 is not there: the server has"),
        (client.handle, 0, 0, "byte_size"),
        (bytes(64), SIZE, 0, "cannot be opened"),
        (b"\xff" * 64, SIZE, 0, "cannot be opened"),
        (np.random.default_rng(5).bytes(64), SIZE, 0, "cannot be opened"),
    ):
        with pytest.raises(RefusedError, match=says) as raised:
            client.wire.register("mine", handle, size, device)
        assert raised.value.code in REFUSED
    if not client.setup.is_real:  # what a GPU's driver makes of it is its own affair
        with pytest.raises(RefusedError, match="cannot be opened"):
            client.wire.register("mine", bytes(changed), SIZE)
    assert client.wire.listed() == {}
    client.wire.register("mine", client.handle, SIZE)
    assert client.infer()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"raw_handle": "AAAA", "device_id": 0, "byte_size": 1}',
        b'{"raw_handle": {}, "device_id": 0, "byte_size": 1}',
        b'{"raw_handle": {"b64": "\\u00e9"}, "device_id": 0, "byte_size": 1}',
        b'{"raw_handle": {"b64": "AAA"}, "device_id": 0, "byte_size": 1}',
        b'{"raw_handle": {"b64": "AAAA"}, "device_id": -1, "byte_size": 1}',
        b'{"raw_handle": {"b64": "AAAA"}, "device_id": 0.5, "byte_size": 1}',
        b'{"raw_handle": {"b64": "AAAA"}, "byte_size": 1}',
        b'{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": -1}',
    ],
)
def test_any_other_body_is_refused(setup: Setup, body: bytes) -> None:
    connection = http.client.HTTPConnection(setup.served.http, timeout=60)
    connection.request("POST", "/v2/cudasharedmemory/region/mine/register", body)
    assert connection.getresponse().status == 400


def test_what_lies_beyond_a_region_is_not_touched(client: Client) -> None:
    client.wire.register("mine", client.handle, SIZE)
    inside = place("mine", IMAGE_BYTES)
    for given, taken, says in (
        (place("mine", IMAGE_BYTES, SIZE - 1), {}, "are beyond the end of region 'mine'"),
        (place("mine", IMAGE_BYTES - 1), {}, "shared_memory_byte_size is 3071, but"),
        (inside, {"classes": place("mine", 8, SIZE - 7)}, "are beyond the end of region 'mine'"),
        (inside, {"logits": place("mine", 399)}, "takes 400 bytes, but shared_memory_byte_size is 399"),
    ):
        with pytest.raises(RefusedError, match=says) as raised:
            client.wire.infer(1, given, taken)
        assert raised.value.code in REFUSED


def test_freed_memory_costs_at_most_the_call(client: Client) -> None:
    client.wire.register("mine", client.handle, SIZE)
    client.gpu.free(client.address)
    client.address = 0
    for _ in range(6):
        refused = refusal_of(client)
        assert client.setup.is_real or refused is not None, (
            "a GPU's driver may keep the memory for the server"
        )
        if refused is not None:
            assert "the CUDA memory of region 'mine' cannot be read" in str(refused)
            assert refused.code in REFUSED
    assert client.wire.listed() == {"mine": (0, SIZE)}
    assert len(client.asked()[0]) == COUNT


def refusal_of(client: Client) -> RefusedError | None:
    try:
        client.infer()
    except RefusedError as refused:
        return refused
    return None


def test_a_client_that_dies_harms_nobody(client: Client) -> None:
    environment = {**os.environ, **({SETTING: client.setup.library} if client.setup.library else {})}
    other = subprocess.Popen(
        [sys.executable, str(CLIENT), str(SIZE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert other.stdout is not None
    handle = base64.b64decode(other.stdout.readline())
    client.wire.register("theirs", handle, SIZE)
    client.wire.register("mine", client.handle, SIZE)
    assert client.infer(region="theirs")
    other.kill()
    other.communicate()
    for _ in range(4):
        assert client.infer(region="theirs"), "the server's handle keeps the memory"
        assert client.infer()
    client.wire.unregister("theirs")
    if not client.setup.is_real:
        os.unlink(path_of(handle))
    with pytest.raises(RefusedError, match="cannot be opened"):
        client.wire.register("theirs", handle, SIZE)
    assert client.infer()


def path_of(handle: bytes) -> str:
    """The file behind a handle of the stand-in."""
    return f"/dev/shm{handle.rstrip(bytes(1)).decode()}"


def test_a_front_that_starts_again_knows_the_regions(client: Client) -> None:
    served = client.setup.served
    if not served.fronts():
        pytest.skip("a gateway without fronts")
    client.wire.register("mine", client.handle, SIZE)
    served.renew_fronts()
    for _ in range(6):
        assert Client.infer(client)


def test_the_server_says_that_it_has_this(setup: Setup) -> None:
    wire = HttpWire(setup.served)
    assert {"system_shared_memory", "cuda_shared_memory"} <= set(wire.ask("GET", "/v2")["extensions"])
    paths = wire.ask("GET", "/openapi.json")["paths"]
    assert len([path for path in paths if path.startswith("/v2/cudasharedmemory")]) == 5


def test_tritons_own_client_registers(client: Client) -> None:
    triton = pytest.importorskip(
        "tritonclient.http" if isinstance(client.wire, HttpWire) else "tritonclient.grpc"
    )
    served = client.setup.served
    address = served.http if isinstance(client.wire, HttpWire) else served.grpc
    theirs = triton.InferenceServerClient(address)
    handle = base64.b64encode(
        client.handle
    )  # as tritonclient.utils.cuda_shared_memory.get_raw_handle gives it
    theirs.register_cuda_shared_memory("mine", handle, 0, SIZE)
    tensor = triton.InferInput("images", [COUNT, 3, 32, 32], "UINT8")
    tensor.set_shared_memory("mine", COUNT * IMAGE_BYTES)
    output = triton.InferRequestedOutput("classes")
    output.set_shared_memory("mine", COUNT * CLASS_BYTES, COUNT * IMAGE_BYTES)
    theirs.infer("slimresnet", [tensor], outputs=[output], parameters={"plan": "0.25"})
    assert client.answers()[0].tolist() == client.asked()[0]
    assert "mine" in str(theirs.get_cuda_shared_memory_status("mine"))
    theirs.unregister_cuda_shared_memory("mine")
    assert client.wire.listed() == {}


@pytest.mark.parametrize("fronts", ["0", "1"])
def test_a_broken_context_costs_cuda_memory_only(tmp_path: Path, fronts: str) -> None:
    library = build(tmp_path)
    served = start(tmp_path, library, "--fronts", fronts)
    try:
        client = Client(Setup(served, library, is_real=False), "http")
        client.wire.register("mine", client.handle, SIZE)
        os.truncate(path_of(client.handle), 1)
        for _ in range(3):
            with pytest.raises(
                RefusedError, match=r"works no more in this process: .*illegal memory access"
            ) as raised:
                client.infer()
            assert raised.value.code == "503"
        if fronts == "0":
            assert client.wire.listed() == {}
            with pytest.raises(RefusedError, match="works no more in this process"):
                client.wire.register("again", client.handle, 1)
        client.wire.unregister()
        assert len(client.asked()[0]) == COUNT, "requests without CUDA memory are served as before"
        client.close()
        assert served.stop() == 0
    finally:
        served.process.kill()
