"""Tensors in clients' shared memory: Triton's own client library works unchanged, over HTTP and gRPC."""

import http.client
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from queue import Queue
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from command_line import CliRunner
from served import Served, serve
from slimsched.core.config import ConfigError

Images = NDArray[np.uint8]
PROTOCOLS = {"http": triton_http, "grpc": triton_grpc}
REFUSED = ("400", "StatusCode.INVALID_ARGUMENT")
IMAGE_BYTES, LOGITS_BYTES = 3 * 32 * 32, 100 * 4
PLAN = {"plan": "0.25"}


@pytest.fixture(scope="module", params=["0", "2"], ids=["gateway", "fronts"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway that reads requests itself, or front processes that do it for it."""
    running = serve(tmp_path_factory.mktemp("served"), "--shared-memory", "--fronts", request.param)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


class Memory:
    """A client, and regions of shared memory that the test uses up."""

    def __init__(self, served: Served, protocol: str) -> None:
        self.served, self.module = served, PROTOCOLS[protocol]
        self.client = self.module.InferenceServerClient(served.http if protocol == "http" else served.grpc)
        self.handles: dict[str, Any] = {}

    def make(self, name: str, size: int) -> Any:
        """Create shared memory and register it."""
        key = f"/test_{uuid4().hex}"
        self.handles[name] = handle = shm.create_shared_memory_region(name, key, size, create_only=True)
        self.client.register_system_shared_memory(name, key, size)
        return handle

    def path(self, name: str) -> str:
        """The file of a region."""
        return f"/dev/shm{self.handles[name]._shm_key}"

    def input(self, name: str, count: int, size: int | None = None, offset: int = 0) -> Any:
        """Images that lie in a region."""
        tensor = self.module.InferInput("images", [count, 3, 32, 32], "UINT8")
        tensor.set_shared_memory(name, count * IMAGE_BYTES if size is None else size, offset)
        return tensor

    def output(self, name: str, region: str, size: int, offset: int = 0) -> Any:
        """An output that is to be written into a region."""
        output = self.module.InferRequestedOutput(name)
        output.set_shared_memory(region, size, offset)
        return output

    def infer(self, inputs: Any, *outputs: Any, **parameters: Any) -> Any:
        return self.client.infer(
            "slimresnet", [inputs], outputs=list(outputs) or None, parameters=parameters or PLAN
        )

    def ask(self, images: Images, *outputs: str) -> Any:
        """The same without shared memory."""
        tensor = self.module.InferInput("images", list(images.shape), "UINT8")
        tensor.set_data_from_numpy(images)
        return self.infer(tensor, *[self.module.InferRequestedOutput(name) for name in outputs])

    def listed(self) -> dict[str, dict[str, Any]]:
        if self.module is triton_http:
            return {one["name"]: one for one in self.client.get_system_shared_memory_status()}
        status = self.client.get_system_shared_memory_status(as_json=True)
        return dict(status.get("regions", {}))

    def close(self) -> None:
        self.client.unregister_system_shared_memory()
        for handle in self.handles.values():
            shm.destroy_shared_memory_region(handle)


@pytest.fixture(params=["http", "grpc"])
def memory(request: pytest.FixtureRequest, served: Served) -> Iterator[Memory]:
    one = Memory(served, request.param)
    yield one
    one.close()


def output_parameters(result: Any, name: str) -> dict[str, Any]:
    output = result.get_output(name)
    if isinstance(output, dict):
        assert output["parameters"].pop("binary_data_size") == 0  # perf_analyzer wants to be told
        return dict(output["parameters"])
    return {
        key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in output.parameters.items()
    }


@pytest.mark.parametrize("count", [1, 8])  # in a message, and in the servers' own shared memory
def test_inputs_and_outputs_lie_in_shared_memory(memory: Memory, images: Images, count: int) -> None:
    given, taken = memory.make("in", 100 + count * IMAGE_BYTES), memory.make("out", 4096)
    shm.set_shared_memory_region(given, [images[:count]], offset=100)
    outputs = memory.output("logits", "out", 3200, 64), memory.output("classes", "out", 64)
    result = memory.infer(memory.input("in", count, offset=100), *outputs)
    logits = shm.get_contents_as_numpy(taken, np.float32, [count, 100], 64)
    classes = shm.get_contents_as_numpy(taken, np.int64, [count], 0)
    wanted = memory.ask(images[:count], "classes", "logits")
    assert np.allclose(logits, wanted.as_numpy("logits"), atol=0.2)  # half precision
    assert classes.tolist() == logits.argmax(axis=1).tolist()
    assert output_parameters(result, "logits") == {
        "shared_memory_region": "out",
        "shared_memory_offset": 64,
        "shared_memory_byte_size": count * LOGITS_BYTES,
    }
    del logits, classes  # the memory cannot be closed while they look at it


def test_words_and_a_mixture_of_both_ways(memory: Memory, images: Images) -> None:
    taken = memory.make("out", 4096)
    tensor = memory.module.InferInput("images", [4, 3, 32, 32], "UINT8")
    tensor.set_data_from_numpy(images[:4])
    wanted = memory.ask(images[:4], "labels", "classes")
    plain = memory.module.InferRequestedOutput("classes")
    result = memory.infer(tensor, memory.output("labels", "out", 4096), plain)
    assert shm.get_contents_as_numpy(taken, np.object_, [4]).tolist() == [
        word if isinstance(word, bytes) else word.encode() for word in wanted.as_numpy("labels")
    ]
    assert result.as_numpy("classes").tolist() == wanted.as_numpy("classes").tolist()
    with pytest.raises(InferenceServerException, match=r"output 'labels' takes \d+ bytes, but .* is 8"):
        memory.infer(tensor, memory.output("labels", "out", 8))


def test_floats_are_read_too(memory: Memory, images: Images) -> None:
    floats = images.astype(np.float32) / 255
    shm.set_shared_memory_region(memory.make("in", floats.nbytes), [floats])
    tensor = memory.module.InferInput("images", list(floats.shape), "FP32")
    tensor.set_shared_memory("in", floats.nbytes)
    assert (
        memory.infer(tensor).as_numpy("classes").tolist() == memory.ask(images).as_numpy("classes").tolist()
    )


def test_regions_are_listed_and_forgotten(memory: Memory, images: Images) -> None:
    assert memory.listed() == {}
    memory.make("a region/of mine", 8 * IMAGE_BYTES)
    memory.make("other", 64)
    listed = memory.listed()
    assert set(listed) == {"a region/of mine", "other"}
    assert listed["other"]["key"] == memory.handles["other"]._shm_key
    assert int(listed["other"]["byte_size"]) == 64
    assert memory.client.get_system_shared_memory_status("other")
    with pytest.raises(InferenceServerException, match="is registered already; unregister it first"):
        memory.client.register_system_shared_memory("other", "/test", 64)
    memory.infer(memory.input("a region/of mine", 8))
    memory.client.unregister_system_shared_memory("a region/of mine")
    memory.client.unregister_system_shared_memory("a region/of mine")  # nothing is left to do
    for _ in range(6):  # whichever process reads it
        one = Memory(memory.served, "http")
        with pytest.raises(InferenceServerException, match="no shared memory region 'a region/of mine' is"):
            one.infer(one.input("a region/of mine", 8))
    memory.client.unregister_system_shared_memory()
    assert memory.listed() == {}
    with pytest.raises(InferenceServerException, match="no shared memory region 'other' is registered"):
        memory.client.get_system_shared_memory_status("other")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({"name": "else"}, "no shared memory region 'else' is registered; register it first"),
        ({"size": 5 * IMAGE_BYTES}, "beyond the end of region 'in', which has 12288 bytes"),
        ({"offset": 1}, "12288 bytes at 1 are beyond the end of region 'in'"),
        ({"offset": 2**39}, "beyond the end of region 'in'"),
        ({"offset": -1}, "Expected `int` >= 0"),
        ({"offset": 2**62}, "Expected `int` <= "),
        ({"size": IMAGE_BYTES}, "byte_size is 3072, but UINT8 of shape [4, 3, 32, 32] takes 12288"),
        ({"size": 0}, "shared_memory_byte_size is missing"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(memory: Memory, place: dict[str, Any], says: str) -> None:
    memory.make("in", 4 * IMAGE_BYTES)
    tensor = memory.input(**{"name": "in", "count": 4, **place})
    with pytest.raises(InferenceServerException) as raised:
        memory.infer(tensor)
    assert says in str(raised.value)
    assert raised.value.status() in REFUSED
    assert memory.infer(memory.input("in", 4)).as_numpy("classes").shape == (4,)


def test_an_output_without_room_is_refused_before_anything_is_written(memory: Memory) -> None:
    memory.make("in", IMAGE_BYTES)
    taken = memory.make("out", 1024)
    shm.set_shared_memory_region(taken, [np.full(1024, 7, np.uint8)])
    classes = memory.output("classes", "out", 8)
    for output, says in (
        (memory.output("logits", "out", LOGITS_BYTES - 1), "output 'logits' takes 400 bytes, but"),
        (memory.output("logits", "out", 1024, 1), "beyond the end of region 'out'"),
        (memory.output("logits", "none", LOGITS_BYTES), "no shared memory region 'none' is registered"),
    ):
        with pytest.raises(InferenceServerException) as raised:
            memory.infer(memory.input("in", 1), classes, output)
        assert says in str(raised.value)
        assert raised.value.status() in REFUSED
    with pytest.raises(InferenceServerException) as raised:
        memory.infer(memory.input("in", 1), classes, deadline_ms=0.01)
    assert raised.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")
    assert set(shm.get_contents_as_numpy(taken, np.uint8, [1024]).tolist()) == {7}


def test_memory_that_becomes_smaller_costs_the_call_and_nothing_else(memory: Memory, images: Images) -> None:
    memory.make("in", 8 * IMAGE_BYTES)
    memory.make("out", 8192)
    outputs = memory.output("classes", "out", 64), memory.output("logits", "out", 3200, 4096)
    os.truncate(memory.path("out"), 4096)
    with pytest.raises(InferenceServerException, match="region 'out' is smaller now than when it was"):
        memory.infer(memory.input("in", 8), *outputs)
    with open(memory.path("out"), "rb") as file:
        assert file.read() == bytes(4096), "the first output is not written either"
    os.truncate(memory.path("in"), 100)
    with pytest.raises(InferenceServerException, match="region 'in' is smaller now than when it was"):
        memory.infer(memory.input("in", 8))
    assert memory.ask(images).as_numpy("classes").shape == (8,)


def test_what_is_not_the_clients_own_memory_is_not_opened(memory: Memory) -> None:
    for key in ("/../etc/passwd", "..", "/", "", "a/b", "slim-1-inputs-0", f"/{uuid4().hex}", "x" * 300):
        with pytest.raises(InferenceServerException) as raised:
            memory.client.register_system_shared_memory("mine", key, 10)
        assert raised.value.status() in REFUSED, key
    assert memory.listed() == {}


def test_cuda_shared_memory_is_not_offered(memory: Memory) -> None:
    status = memory.client.get_cuda_shared_memory_status()
    assert status == [] if memory.module is triton_http else not status.regions
    memory.client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not offered") as raised:
        memory.client.register_cuda_shared_memory("gpu", b"aGFuZGxl", 0, 64)
    assert raised.value.status() in ("400", "StatusCode.UNIMPLEMENTED")


def test_the_extension_is_named(served: Served) -> None:
    client = triton_http.InferenceServerClient(served.http)
    extensions = client.get_server_metadata()["extensions"]
    assert "system_shared_memory" in extensions
    assert "cuda_shared_memory" not in extensions


def test_the_document_names_every_path_and_its_codes(served: Served) -> None:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("GET", "/openapi.json")
    paths = json.loads(connection.getresponse().read())["paths"]
    mine = {path: one for path, one in paths.items() if "sharedmemory" in path}
    assert len(mine) == 5
    for path, operations in mine.items():
        for method, operation in operations.items():
            connection.request(method.upper(), path.replace("{region}", "none"), b"{}")
            response = connection.getresponse()
            response.read()
            assert str(response.status) in operation["responses"], path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"key": 3}',
        b'{"key": "a"}',
        b'{"key": "a", "byte_size": 0}',
        b'{"key": "a", "byte_size": -1}',
        b'{"key": "a", "byte_size": 1e400}',
        b'{"key": "a", "byte_size": 1, "offset": 18446744073709551616}',
        b'{"key": "a\\u0000b", "byte_size": 1}',
        b'{"key": "\\ud800", "byte_size": 1}',
        b"\xff",
    ],
)
def test_any_other_registration_is_refused(served: Served, body: bytes) -> None:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("POST", "/v2/systemsharedmemory/region/mine/register", body)
    assert connection.getresponse().status == 400


def test_requests_under_way_write_their_answers_though_the_region_is_forgotten(
    served: Served, images: Images
) -> None:
    memory = Memory(served, "grpc")
    taken = memory.make("out", 16 * 64)
    tensor = triton_grpc.InferInput("images", [8, 3, 32, 32], "UINT8")
    tensor.set_data_from_numpy(images)
    ended: Queue[tuple[int, Any]] = Queue()
    for number in range(16):
        memory.client.async_infer(
            "slimresnet",
            [tensor],
            callback=partial(lambda number, result, error: ended.put((number, error)), number),
            outputs=[memory.output("classes", "out", 64, 64 * number)],
            parameters=PLAN,
        )
    memory.client.unregister_system_shared_memory("out")
    wanted = memory.ask(images).as_numpy("classes").tolist()
    for _ in range(16):
        number, error = ended.get(timeout=60)
        classes = shm.get_contents_as_numpy(taken, np.int64, [8], 64 * number).tolist()
        if error is None:
            assert classes == wanted
        else:
            assert "no shared memory region 'out' is registered" in str(error)
            assert classes == [0] * 8
    memory.close()


def test_json_that_names_memory_and_has_data_is_refused(served: Served) -> None:
    place = {"shared_memory_region": "in", "shared_memory_byte_size": IMAGE_BYTES}
    tensor = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "parameters": place}
    connection = http.client.HTTPConnection(served.http, timeout=60)
    body = json.dumps({"inputs": [{**tensor, "data": [0] * IMAGE_BYTES}]})
    connection.request("POST", "/v2/models/slimresnet/infer", body)
    response = connection.getresponse()
    assert response.status == 400
    assert b"names shared memory and has data" in response.read()


def test_a_front_that_starts_again_knows_regions_whose_names_are_gone(served: Served, images: Images) -> None:
    if not served.fronts():
        pytest.skip("a gateway without fronts")
    memory = Memory(served, "http")
    shm.set_shared_memory_region(memory.make("in", 8 * IMAGE_BYTES), [images])
    shm.destroy_shared_memory_region(memory.handles.pop("in"))  # the file has no name any more
    served.renew_fronts()
    for _ in range(6):
        one = Memory(served, "http")
        assert one.infer(one.input("in", 8)).as_numpy("classes").shape == (8,)
    Memory(served, "http").close()


def test_without_the_option_nothing_is_opened(own_server: Callable[..., Served]) -> None:
    served = own_server()
    for protocol, code in (("http", "403"), ("grpc", "StatusCode.PERMISSION_DENIED")):
        memory = Memory(served, protocol)
        for ask in (
            lambda one: one.client.register_system_shared_memory("in", "/test", 64),
            lambda one: one.client.get_system_shared_memory_status(),
            lambda one: one.client.register_cuda_shared_memory("in", b"aGFuZGxl", 0, 64),
            lambda one: one.client.unregister_cuda_shared_memory(),
            lambda one: one.infer(one.input("in", 1)),
        ):
            with pytest.raises(InferenceServerException, match="--shared-memory") as raised:
                ask(memory)
            assert raised.value.status() == code
    assert served.stop() == 0


def test_a_server_that_strangers_reach_needs_a_token() -> None:
    done = CliRunner().invoke(["serve", "--shared-memory", "--host", "0.0.0.0"])
    assert isinstance(done.exception, ConfigError)
    assert "give --token-file as well, or listen on this machine only" in str(done.exception)
