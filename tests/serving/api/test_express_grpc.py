"""The express line of gRPC: calls with known heads are read without Python, and nobody can tell."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from served import CONFIG, Served, serve
from slimsched.serving.api.calls import Call, InferenceResult, ModelApi, RequestedOutput
from slimsched.serving.api.grpc_codec import before_raw, pb, write_answer, write_around
from slimsched.serving.api.grpc_server import is_available
from slimsched.serving.domain.request import Terms
from slimsched.serving.scenario.files import load_scenario
from stamped import stamped_folder

compiled = pytest.mark.skipif(
    not is_available and not os.environ.get("SLIM_REQUIRE_EXPRESS_GRPC"),
    reason="the express line of gRPC was not compiled",
)
Images = NDArray[np.uint8]
EXPRESS = "slim_express_responses_total"
SERVICE = "/inference.GRPCInferenceService"


def write(images: Images, name: str = "slimresnet", **parameters: str) -> Any:
    """Return a request that asks for classes and logits."""
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name="images", datatype="UINT8", shape=images.shape)
    for output in ("classes", "logits"):
        request.outputs.add(name=output)
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    request.raw_input_contents.append(images.tobytes())
    return request


def classes(answer: Any) -> list[int]:
    """Return the classes of an answer."""
    at = [one.name for one in answer.outputs].index("classes")
    return list(np.frombuffer(answer.raw_output_contents[at], np.int64).tolist())


@pytest.fixture
def stub(expressed: Served) -> Iterator[Any]:
    with grpc.insecure_channel(expressed.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def counted(served: Served, name: str, at_least: float) -> None:
    """Wait until so many are counted: fronts report ten times per second."""
    until_s = time.monotonic() + 5.0
    while served.metric(name) < at_least and time.monotonic() < until_s:
        time.sleep(0.05)
    assert served.metric(name) >= at_least


@compiled
def test_the_same_head_is_read_by_the_express_line_and_answered_alike(
    expressed: Served, stub: Any, images: Images
) -> None:
    fine = 'slim_responses_total{protocol="grpc",kind="infer",code="OK"'
    before, before_fine = expressed.metric(EXPRESS), expressed.metric(fine)
    first = stub.ModelInfer(write(images, plan="0.5"))
    others = [stub.ModelInfer(write(images[::-1], plan="0.5")) for _ in range(4)]
    for other in others:
        assert other.parameters.keys() == first.parameters.keys()
        assert [one.SerializeToString() for one in other.outputs] == [
            one.SerializeToString() for one in first.outputs
        ]
        assert other.parameters["choices"] == first.parameters["choices"]
        assert other.parameters["network_ms"].double_param >= 0.0
        assert classes(other) == classes(first)[::-1], "each image has its own answer"
        logits = [
            np.frombuffer(one.raw_output_contents[1], np.float32).reshape(-1, 100) for one in (first, other)
        ]
        np.testing.assert_allclose(logits[1], logits[0][::-1], atol=0.3)
    assert len({one.parameters["request"].int64_param for one in [first, *others]}) == 5
    counted(expressed, EXPRESS, before + 3)
    counted(expressed, fine, before_fine + 5)


@compiled
def test_headers_that_mean_nothing_may_differ(expressed: Served, stub: Any, images: Images) -> None:
    before = expressed.metric(EXPRESS)
    for number in range(5):
        stub.ModelInfer(
            write(images[:3], plan="0.25"), metadata=(("x-trace", f"{number}"),), timeout=20 + number
        )
    counted(expressed, EXPRESS, before + 3)


def test_plans_parameters_and_ids_are_told_apart(expressed: Served, stub: Any, images: Images) -> None:
    for plan in ("0.5", "1.0", "0.5", "9.9", "0.5", "1.0", "0.5"):  # all as long as one another
        request = write(images[:1], plan=plan)
        request.id = f"id of {plan}"
        if plan == "9.9":
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            continue
        answer = stub.ModelInfer(request)
        assert answer.parameters["choices"].string_param == ",".join([plan] * 4)
        assert answer.id == f"id of {plan}"


@pytest.mark.parametrize("channels", [1, 12])
def test_calls_over_one_and_over_many_connections_get_their_own_answers(
    expressed: Served, images: Images, channels: int
) -> None:
    shuffles = [np.random.default_rng(number).permutation(8)[:3] for number in range(12)]
    options = [("grpc.use_local_subchannel_pool", 1)]
    opened = [grpc.insecure_channel(expressed.grpc, options=options) for _ in range(channels)]
    stubs = [service_pb2_grpc.GRPCInferenceServiceStub(one) for one in opened]
    expected = classes(stubs[0].ModelInfer(write(images, plan="0.5")))

    def client(number: int) -> bool:
        stub, order = stubs[number % channels], shuffles[number % 12]
        answers = [stub.ModelInfer(write(images[order], plan="0.5")) for _ in range(8)]
        return all(classes(one) == [expected[place] for place in order] for one in answers)

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(client, range(24)))
    for one in opened:
        one.close()


def test_a_call_that_is_cancelled_or_late_is_let_go(expressed: Served, stub: Any, images: Images) -> None:
    large = np.repeat(images, 8, axis=0)
    for _ in range(2):
        stub.ModelInfer(write(large, plan="1.0"))
    for _ in range(8):
        stub.ModelInfer.future(write(large, plan="1.0")).cancel()
    late = [stub.ModelInfer.future(write(large, plan="1.0"), timeout=0.002) for _ in range(8)]
    assert grpc.StatusCode.DEADLINE_EXCEEDED in {one.code() for one in late}
    assert stub.ModelInfer(write(images, plan="0.25"))
    until_s = time.monotonic() + 20.0
    while expressed.metric("slim_images_in_system") and time.monotonic() < until_s:
        time.sleep(0.05)
    assert expressed.metric("slim_images_in_system") == 0.0


def test_what_is_too_large_wrong_or_unknown_has_its_status(expressed: Served, images: Images) -> None:
    with grpc.insecure_channel(expressed.grpc) as channel:

        def status(method: str, raw: bytes, **how: Any) -> grpc.StatusCode:
            return channel.unary_unary(f"{SERVICE}/{method}").future(raw, timeout=30, **how).code()

        code, whole = grpc.StatusCode, write(images).SerializeToString()
        assert status("ModelInfer", whole) is code.OK
        assert status("ModelInfer", whole, compression=grpc.Compression.Gzip) is code.OK
        assert status("ModelInfer", bytes(5 * 2**20)) is code.INVALID_ARGUMENT
        assert status("ModelInfer", bytes(9 * 2**20)) is code.RESOURCE_EXHAUSTED
        bomb = bytes(90 * 2**20)
        assert status("ModelInfer", bomb, compression=grpc.Compression.Gzip) is code.RESOURCE_EXHAUSTED
        assert status("ModelInfer", whole[:-1]) is code.INVALID_ARGUMENT
        assert status("ModelInfer", b"\xff\xff") is code.INVALID_ARGUMENT
        assert status("Nothing", b"") is code.UNIMPLEMENTED
        assert status("ServerLive", b"") is code.OK
        assert channel.unary_unary("/other.Service/Call").future(b"").code() is code.UNIMPLEMENTED
        empty = channel.stream_unary(f"{SERVICE}/ModelInfer").future(iter([]), timeout=30)
        assert (empty.code(), empty.details()) == (code.INVALID_ARGUMENT, "the call has no message; send one")


@compiled
def test_large_calls_come_whole(expressed: Served, stub: Any, images: Images) -> None:
    before = expressed.metric(EXPRESS)
    large = np.repeat(images, 8, axis=0)
    answers = [stub.ModelInfer.future(write(large, plan="0.25")) for _ in range(2)]
    wanted = [classes(one.result()) for one in answers]
    more = [stub.ModelInfer.future(write(large, plan="0.25")) for _ in range(6)]
    assert all(classes(one.result()) == wanted[0] for one in more)
    counted(expressed, EXPRESS, before + 6)


def test_what_cannot_be_answered_in_time_is_refused_with_a_status(expressed: Served, images: Images) -> None:
    """More than the servers can do: each call is answered or refused, and the counts agree."""
    request, outcomes = write(images, plan="1.0"), list[grpc.StatusCode]()
    request.parameters["deadline_ms"].double_param = 120.0

    def client() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(expressed.grpc, options=options) as channel:
            own = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            outcomes.extend(own.ModelInfer.future(request).code() for _ in range(20))

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code = grpc.StatusCode
    assert len(outcomes) == 320
    assert set(outcomes) <= {code.OK, code.RESOURCE_EXHAUSTED, code.DEADLINE_EXCEEDED}


@compiled
def test_the_token_is_a_part_of_the_head(own_server: Callable[..., Served], images: Images) -> None:
    served = own_server("--token", "secret")
    with grpc.insecure_channel(served.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        right, wrong = (("authorization", "Bearer secret"),), (("authorization", "Bearer sesame"),)
        for _ in range(4):
            assert stub.ModelInfer(write(images), metadata=right)
        for metadata in (wrong, None):
            for _ in range(3):
                refused = stub.ModelInfer.future(write(images), metadata=metadata)
                assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    assert served.metric(EXPRESS, token="secret") >= 2.0
    assert served.stop() == 0


@compiled
@pytest.mark.parametrize("fronts", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_no_call_is_lost_when_the_server_drains(
    own_server: Callable[..., Served], images: Images, fronts: str
) -> None:
    served, outcomes, ended = own_server("--fronts", fronts), list[grpc.StatusCode](), threading.Event()

    def client() -> None:
        with grpc.insecure_channel(served.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            own = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not ended.is_set():
                outcomes.append(own.ModelInfer.future(write(images[:2], plan="0.25"), timeout=60).code())

    threads = [threading.Thread(target=client) for _ in range(6)]
    for thread in threads:
        thread.start()
    while len(outcomes) < 100:
        time.sleep(0.05)
    assert served.stop() == 0
    ended.set()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    assert "Traceback" not in served.log.read_text()


@compiled
def test_a_model_that_is_replaced_is_read_anew(own_server: Callable[..., Served], tmp_path: Path) -> None:
    repository, config = tmp_path / "repository", tmp_path / "cats.toml"
    stamped_folder(repository / "cats", stamp=3.0)
    config.write_text(CONFIG + f'[[model]]\nsource = "{repository / "cats"}"\n')
    served = own_server("--config", str(config), "--model-repository", str(repository))
    client = triton.InferenceServerClient(served.grpc)
    tensor = triton.InferInput("x", [3, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((3, 4), np.float32))
    for version, stamp in (("1", 51.0), ("2", 52.0)):
        stamped_folder(repository / "dogs" / version, name="dogs", version=version, stamp=stamp)
        client.load_model("dogs")
        before = served.metric(EXPRESS)
        for _ in range(5):
            assert client.infer("dogs", [tensor]).as_numpy("y").tolist() == [[stamp, stamp, 4.0]] * 3
            assert client.infer("cats", [tensor]).as_numpy("y").tolist() == [[3.0, 3.0, 4.0]] * 3
        assert served.metric(EXPRESS) >= before + 6
    values = np.ones((3, 4), np.float32)
    values[1, 2] = np.nan
    tensor.set_data_from_numpy(values)
    with pytest.raises(InferenceServerException, match="not finite"):
        client.infer("dogs", [tensor])
    assert served.stop() == 0


def test_without_the_compiled_part_the_library_reads_all_calls(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIM_PURE", "1")
    running = serve(tmp_path)
    with grpc.insecure_channel(running.grpc) as channel:
        own = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert len({tuple(classes(own.ModelInfer(write(images, plan="0.5")))) for _ in range(4)}) == 1
    assert running.metric(EXPRESS) == 0.0
    assert running.stop() == 0


FACE = ModelApi(load_scenario("laptop").cluster.models[0])


@given(st.floats(0.0, 1e9), st.integers(0, 2**62), st.text(max_size=40), st.integers(1, 64))
def test_the_text_around_two_numbers_is_the_answer(
    network_ms: float, request: int, id: str, count: int
) -> None:
    outputs = tuple(RequestedOutput(name=name, binary=True) for name in FACE.outputs[:2])
    call = Call(id=id, api=FACE, inputs=(), count=count, terms=Terms(), outputs=outputs)
    numbers = {"network_ms": network_ms, "reason": "because", "request": request}
    parameters: dict[str, Any] = {"choices": "a,b", "queue_ms": 1.5, **numbers, "sure": "0.9"}
    logits = np.arange(count * 100, dtype=np.float32).reshape(count, *FACE.spec.outputs[0].shape)
    wanted = write_answer(call, InferenceResult(outputs=(logits,), parameters=dict(parameters)))
    shapes = [(count,), logits.shape]
    before, between, after = write_around(call, parameters, shapes)
    groups = [request >> 7 * at & 127 for at in range(10)]
    varint = bytes([*(group | 128 for group in groups[:9]), groups[9]])
    rows = [
        before_raw(len(raw)) + raw for raw in pb.ModelInferResponse.FromString(wanted).raw_output_contents
    ]
    text = before + np.float64(network_ms).tobytes() + between + varint + after + b"".join(rows)
    assert pb.ModelInferResponse.FromString(text) == pb.ModelInferResponse.FromString(wanted)
