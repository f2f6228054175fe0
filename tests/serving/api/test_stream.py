"""Streaming inference over gRPC: Triton's own client library works unchanged."""

import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from served import Served, serve

Images = NDArray[np.uint8]
Answers = Queue[tuple[Any, InferenceServerException | None]]


@pytest.fixture(scope="module", params=["0", "2"], ids=["gateway", "fronts"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway that reads requests itself, or front processes that do it for it."""
    running = serve(tmp_path_factory.mktemp("served"), "--fronts", request.param)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def start(served: Served, **options: Any) -> tuple[triton.InferenceServerClient, Answers]:
    """Start a stream; answers and errors come into the queue."""
    client, answers = triton.InferenceServerClient(served.grpc), Answers()
    client.start_stream(lambda result, error: answers.put((result, error)), **options)
    return client, answers


def send(client: triton.InferenceServerClient, images: Images, number: int, plan: str = "0.25") -> None:
    tensor = triton.InferInput("images", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    client.async_stream_infer("slimresnet", [tensor], request_id=str(number), parameters={"plan": plan})


def ask(served: Served, images: Images) -> list[int]:
    """The classes of images, without a stream."""
    tensor = triton.InferInput("images", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    client = triton.InferenceServerClient(served.grpc)
    result = client.infer("slimresnet", [tensor], parameters={"plan": "0.25"})
    return list(result.as_numpy("classes").tolist())


def test_pipelined_requests_get_their_own_answers(served: Served, images: Images) -> None:
    wanted = ask(served, images)
    client, answers = start(served)
    for number in range(80):  # more than may be under way at once
        send(client, images[number % 8 : number % 8 + 1], number)
    client.stop_stream()  # waits for all answers
    classes: dict[int, list[int]] = {}
    while not answers.empty():
        result, error = answers.get()
        assert error is None
        classes[int(result.get_response().id)] = result.as_numpy("classes").tolist()
        assert result.get_response().parameters["triton_final_response"].bool_param
    assert classes == {number: [wanted[number % 8]] for number in range(80)}


def test_an_error_is_one_requests_own(served: Served, images: Images) -> None:
    client, answers = start(served)
    for number in range(9):
        plan = "0.3" if number % 3 == 0 else "0.25"
        send(client, images[:1], number, plan)
    client.stop_stream()
    ended = [answers.get(timeout=30) for _ in range(9)]
    refused = [str(error) for _, error in ended if error is not None]
    assert len(refused) == 3
    assert all("'0.3' is not available: model 'slimresnet' runs at" in one for one in refused)
    assert {result.get_response().id for result, error in ended if error is None} == set("124578")


def test_a_refusal_names_its_request(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = [service_pb2.ModelInferRequest(model_name="vgg", id=name) for name in ("a", "b")]
        replies = list(stub.ModelStreamInfer(iter(requests), timeout=60))
    assert sorted(one.infer_response.id for one in replies) == ["a", "b"]
    assert all("unknown model 'vgg'" in one.error_message for one in replies)


def test_responses_are_counted_one_by_one(served: Served, images: Images) -> None:
    def counted() -> float:
        lines = urlopen(f"http://{served.http}/metrics").read().decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if 'protocol="grpc",kind="infer",code="OK"' in line
        )

    before = -1.0
    while before != (before := counted()):  # fronts hand counts over ten times per second
        time.sleep(0.5)
    client, _ = start(served)
    for number in range(5):
        send(client, images[:1], number)
    client.stop_stream()
    give_up_s = time.monotonic() + 30
    while counted() != before + 5:
        assert time.monotonic() < give_up_s, "the responses were not counted"
        time.sleep(0.05)


def test_a_client_that_leaves_takes_its_requests_with_it(served: Served, images: Images) -> None:
    client, answers = start(served)
    for number in range(64):
        send(client, np.repeat(images, 8, axis=0), number, "1.0")
    began_s = time.monotonic()
    client.stop_stream(cancel_requests=True)
    assert ask(served, images[:1])
    assert time.monotonic() - began_s < 30, "4,096 images at full width would take longer"
    assert answers.qsize() < 64


def test_a_stream_reads_no_more_than_may_be_under_way(
    own_server: Callable[..., Served], images: Images
) -> None:
    served = own_server("--limit", "pipelined_requests=2")
    large = triton.InferInput("images", [64, 3, 32, 32], "UINT8")
    large.set_data_from_numpy(np.repeat(images, 8, axis=0))
    request = service_pb2.ModelInferRequest(model_name="slimresnet", inputs=[large._get_tensor()])
    request.raw_input_contents.append(large._get_content())
    request.parameters["plan"].string_param = "0.25"
    taken, answered, most = 0, 0, 0

    def requests() -> Iterator[Any]:
        nonlocal taken, most
        for _ in range(30):
            taken += 1
            most = max(most, taken - answered)
            yield request

    with grpc.insecure_channel(served.grpc) as channel:
        for reply in service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests()):
            assert not reply.error_message
            answered += 1
    assert answered == 30
    assert most <= 2 + 6, "two under way; a few wait in the client and on the way"
    assert served.stop() == 0


def test_streams_are_limited_in_number_and_idle_ones_end(
    own_server: Callable[..., Served], images: Images
) -> None:
    served = own_server("--limit", "streams=1", "--limit", "idle_s=2")
    first, answers = start(served)
    send(first, images[:1], 1)
    assert answers.get(timeout=30)[1] is None
    _, refused = start(served)
    _, error = refused.get(timeout=30)
    assert "1 streams are open, which is the limit" in str(error)
    assert error is not None
    assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
    _, error = answers.get(timeout=30)
    assert error is not None
    assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert "no request came whole for 2 s; start a new stream" in str(error)
    second, answers = start(served)
    send(second, images[:1], 2)
    assert answers.get(timeout=30)[1] is None
    second.stop_stream()
    assert served.stop() == 0


def test_a_stream_asks_for_the_token(own_server: Callable[..., Served], images: Images) -> None:
    served = own_server("--token", "secret")
    _, answers = start(served)
    _, error = answers.get(timeout=30)
    assert error is not None
    assert error.status() == "StatusCode.UNAUTHENTICATED"
    client, answers = start(served, headers={"authorization": "Bearer secret"})
    send(client, images[:1], 1)
    assert answers.get(timeout=30)[1] is None
    client.stop_stream()
    assert served.stop() == 0


@pytest.mark.parametrize("fronts", ["0", "2"])
def test_a_server_that_drains_answers_what_it_took_and_ends_streams(
    own_server: Callable[..., Served], images: Images, fronts: str
) -> None:
    served = own_server("--fronts", fronts)
    client, answers = start(served)
    channel = grpc.insecure_channel(served.grpc)
    health = HealthStub(channel).Watch(HealthCheckRequest(), timeout=100)
    assert next(health).status == HealthCheckResponse.SERVING
    for number in range(20):
        send(client, images, number)
    first, error = answers.get(timeout=60)
    assert error is None
    assert served.stop() == 0
    assert next(health).status == HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.RpcError, match="the server is draining"):
        next(health)
    channel.close()
    ids, ends = {first.get_response().id}, 0
    for _ in range(20):
        result, error = answers.get(timeout=30)
        if result is not None:
            ids.add(result.get_response().id)
        elif error is not None and error.status() is not None:
            ends += 1
            assert error.status() == "StatusCode.UNAVAILABLE"
        else:
            assert "the server is draining" in str(error)
    assert ends == 1, "and the stream itself says why it ends"
    assert "Traceback" not in served.log.read_text()
