"""Generated requests, in JSON, raw tensors, protocol buffers and plain bytes: no 500, nothing hangs."""

import http.client
import json
import socket

import grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from served import Served
from slimsched.serving.api.proto import inference_pb2
from vitals import health_s

INFER = "/v2/models/slimresnet/infer"
FUZZ = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)

NUMBERS = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**420), max_value=10**420),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 1e308, -1e308, 5e-324, 10**400]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from(
    ["deadline_ms", "timeout", "priority", "min_accuracy", "max_energy_mj", "plan", "width"]
)
PARAMETERS = st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=4)
SHAPES = st.sampled_from([[1, 3, 32, 32], [2, 3, 32, 32], [0, 3, 32, 32]]) | st.lists(NUMBERS, max_size=6)
PIXELS = st.sampled_from([[7] * 3072, [0.5] * 3072, [True] * 3072, [[[[1] * 32] * 32] * 3]]) | VALUES


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return strategy | VALUES


TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": maybe(st.sampled_from(["images", "x"])),
        "shape": maybe(SHAPES),
        "datatype": maybe(st.sampled_from(["UINT8", "FP32", "BOOL", "BYTES", "INT64"])),
        "data": PIXELS,
        "parameters": maybe(st.fixed_dictionaries({}, optional={"binary_data_size": maybe(st.integers())})),
    },
)
OUTPUT = st.fixed_dictionaries(
    {},
    optional={
        "name": maybe(st.sampled_from(["classes", "logits", "labels"])),
        "parameters": maybe(st.fixed_dictionaries({}, optional={"binary_data": VALUES})),
    },
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "inputs": maybe(st.lists(TENSOR, max_size=3)),
        "outputs": maybe(st.lists(OUTPUT, max_size=4)),
        "parameters": maybe(PARAMETERS),
        "id": maybe(st.text(max_size=20)),
    },
)


def ask(served: Served, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    """Send a request; the answer must come in time and be a proper one."""
    connection = http.client.HTTPConnection(served.http, timeout=30)
    connection.request(method, path, body=body, headers=headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status in (200, 400, 404, 405, 413, 429, 431, 503, 504), (
        response.status,
        text,
        body[:300],
    )
    assert response.status == 200 or json.loads(text)["error"]


@FUZZ
@given(message=MESSAGE)
def test_json_of_any_kind(attacked: Served, message: object) -> None:
    ask(attacked, "POST", INFER, json.dumps(message).encode(), {})


@FUZZ
@given(parameters=PARAMETERS)
def test_any_parameters_of_a_good_request(attacked: Served, parameters: object) -> None:
    images = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "data": [7] * 3072}
    ask(attacked, "POST", INFER, json.dumps({"inputs": [images], "parameters": parameters}).encode(), {})


@FUZZ
@given(
    tensor=TENSOR,
    raw=st.binary(max_size=4000),
    length=st.integers(0, 400) | st.text("0123456789-+ e", min_size=1),
)
def test_raw_tensors_that_do_not_fit(attacked: Served, tensor: object, raw: bytes, length: object) -> None:
    head = json.dumps({"inputs": [tensor]}).encode()
    given_length = str(len(head)) if length == 0 else str(length)
    ask(attacked, "POST", INFER, head + raw, {"inference-header-content-length": given_length})


@FUZZ
@given(body=st.binary(max_size=400) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_goal_and_any_request_to_the_repository(attacked: Served, body: bytes) -> None:
    ask(attacked, "PUT", "/v2/goal", body, {})
    connection = http.client.HTTPConnection(attacked.http, timeout=30)
    for path, allowed in (("index", (200, 400)), ("models/slimresnet/load", (400, 403))):
        connection.request("POST", f"/v2/repository/{path}", body=body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in allowed


@FUZZ
@given(
    data=st.lists(
        st.binary(max_size=200)
        | st.sampled_from(
            [
                b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
                b"POST /v2%2fmodels HTTP/1.1\r\nhost: x\r\n",
                b"OPTIONS http://x/v2 HTTP/1.0\r\n",
                b"content-length: 5\r\n",
                b"\r\n",
                b"transfer-encoding: chunked\r\n",
                b"5\r\n",
                b"0\r\n\r\n",
                b"expect: 100-continue\r\n",
                b"connection: upgrade\r\nupgrade: h2c\r\n",
            ]
        ),
        max_size=12,
    ).map(b"".join)
)
def test_any_bytes(attacked: Served, data: bytes) -> None:
    host, port = attacked.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        assert b"HTTP/1.1 500" not in answer


GRPC_VALUES = st.one_of(
    st.booleans().map(lambda value: {"bool_param": value}),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: {"int64_param": value}),
    st.floats().map(lambda value: {"double_param": value}),
    st.text(max_size=30).map(lambda value: {"string_param": value}),
    st.integers(0, 2**64 - 1).map(lambda value: {"uint64_param": value}),
)


@st.composite
def grpc_messages(draw: st.DrawFn) -> bytes:
    request = inference_pb2.ModelInferRequest(model_name=draw(st.sampled_from(["slimresnet", "", "vgg"])))
    for _ in range(draw(st.integers(0, 2))):
        tensor = request.inputs.add(
            name=draw(st.sampled_from(["images", "x"])),
            datatype=draw(st.sampled_from(["UINT8", "FP32", "BOOL", "BYTES", "FP16"])),
            shape=draw(st.sampled_from([[1, 3, 32, 32], [2**62, 3, 32, 32], [-1, 3, 32, 32], []])),
        )
        tensor.contents.uint_contents.extend(draw(st.lists(st.integers(0, 2**32 - 1), max_size=4)))
    for _ in range(draw(st.integers(0, 2))):
        request.raw_input_contents.append(draw(st.binary(max_size=30) | st.just(b"\x07" * 3072)))
    for name, value in draw(st.dictionaries(NAMES, GRPC_VALUES, max_size=3)).items():
        request.parameters[name].CopyFrom(inference_pb2.InferParameter(**value))
    whole: bytes = request.SerializeToString()
    return (
        whole
        if draw(st.booleans())
        else whole[: draw(st.integers(0, len(whole)))] + draw(st.binary(max_size=20))
    )


@FUZZ
@given(message=grpc_messages())
def test_any_message_over_grpc(attacked: Served, message: bytes) -> None:
    with grpc.insecure_channel(attacked.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(message, timeout=30)
        assert call.code().name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"), (
            call.details()
        )


def test_the_server_is_well_afterwards(attacked: Served) -> None:
    assert health_s(attacked.http) < 5.0
