"""Small requests that ask for large answers, or for much memory on the way."""

import gzip
import http.client
import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from served import Served
from slimsched.serving.api.proto import inference_pb2
from vitals import Vitals

INFER = "/v2/models/slimresnet/infer"
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def post(served: Served, body: bytes, path: str = INFER, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("POST", path, body=body, headers=headers)
    response = connection.getresponse()
    text = response.read().decode("utf-8", "replace")
    connection.close()
    return response.status, text


def message(data: str, rows: int = 1, outputs: list[str] | None = None) -> bytes:
    named = json.dumps([{"name": name} for name in outputs or []])
    images = f'"name":"images","shape":[{rows},3,32,32],"datatype":"UINT8","data":{data}'
    return f'{{"inputs":[{{{images}}}],"outputs":{named}}}'.encode()


def ask(served: Served, request: bytes) -> tuple[str, str]:
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.unary_unary(METHOD).future(request, timeout=60)
        return call.code().name, call.details()


def grpc_request(rows: int, outputs: int) -> bytes:
    request = inference_pb2.ModelInferRequest(model_name="slimresnet")
    request.inputs.add(name="images", datatype="UINT8", shape=[rows, 3, 32, 32])
    request.raw_input_contents.append(np.zeros((rows, 3, 32, 32), np.uint8).tobytes())
    for _ in range(outputs):
        request.outputs.add(name="logits")
    return request.SerializeToString()


def test_an_output_may_be_named_once(attacked: Served) -> None:
    body = message(json.dumps([7] * 3072 * 64), 64, ["logits"] * 4000)
    with Vitals(attacked):
        status, text = post(attacked, body)
        assert status == 400
        assert "output 'logits' is asked for twice" in text
        code, details = ask(attacked, grpc_request(64, 20_000))
        assert code == "INVALID_ARGUMENT"
        assert "asked for twice" in details


NUMBERS = "[" + ",".join(["0"] * 2_000_000) + "]"
DATA = {
    "one long string": '"' + "a" * 4_000_000 + '"',
    "a long string in a list": '["' + "a" * 4_000_000 + '"' + ",1" * 3071 + "]",
    "many strings": "[" + ",".join(['"aaaaaaaaaaaaaaaa"'] * 3072) + "]",
    "many numbers": NUMBERS,
    "many empty lists": "[" + ",".join(["[]"] * 1_000_000) + "]",
    "many short lists": "[" + ",".join(["[1]"] * 3072) + "]",
    "deep nesting": "[" * 1_000_000 + "1" + "]" * 1_000_000,
    "deep, then as many as wanted": "[" * 500 + "1" + ",1" * 3071 + "]" * 500,
    "large integers": "[" + ",".join(["1" + "0" * 400] * 3072) + "]",
    "very large integers": "[" + ",".join(["1" + "0" * 5000] * 700) + "]",
    "objects": "[" + ",".join(["{}"] * 3072) + "]",
    "true as a pixel": "[true" + ",1" * 3071 + "]",
    "null as a pixel": "[null" + ",1" * 3071 + "]",
}


@pytest.mark.parametrize("kind", DATA)
def test_data_that_is_no_tensor_is_refused_and_costs_little(attacked: Served, kind: str) -> None:
    with Vitals(attacked):
        for _ in range(3):
            status, text = post(attacked, message(DATA[kind]))
            assert status == 400, text
            assert "error" in json.loads(text)


@pytest.mark.parametrize("kind", ["one long string", "deep nesting", "many numbers"])
def test_so_is_any_other_body(attacked: Served, kind: str) -> None:
    with Vitals(attacked):
        for path in (INFER, "/v2/goal"):
            connection = http.client.HTTPConnection(attacked.http, timeout=60)
            connection.request("PUT" if path == "/v2/goal" else "POST", path, body=DATA[kind])
            assert connection.getresponse().status == 400


def test_a_long_name_is_not_repeated_at_length(attacked: Served) -> None:
    body = message("[1]").replace(b'"images"', b'"' + b"i" * 3_000_000 + b'"')
    status, text = post(attacked, body)
    assert status == 400
    assert len(text) < 2000
    request = inference_pb2.ModelInferRequest(model_name="m" * 100_000)
    code, details = ask(attacked, request.SerializeToString())
    assert code == "NOT_FOUND"
    assert len(details) < 2000


def test_typed_contents_of_the_wrong_length_are_refused(attacked: Served) -> None:
    request = inference_pb2.ModelInferRequest(model_name="slimresnet")
    tensor = request.inputs.add(name="images", datatype="UINT8", shape=[1, 3, 32, 32])
    tensor.contents.uint_contents.extend([1] * 2_000_000)
    with Vitals(attacked):
        code, details = ask(attacked, request.SerializeToString())
    assert code == "INVALID_ARGUMENT"
    assert "2000000 numbers" in details


def test_a_message_that_is_too_large_is_an_invalid_argument(attacked: Served) -> None:
    request = grpc_request(64, 0) + b"\x3a\x80\x80\x80\x02" + b"x" * (4 * 2**20)  # one more raw input
    code, details = ask(attacked, request)
    assert code == "INVALID_ARGUMENT"
    assert "are the limit" in details


def test_a_long_id_is_refused(attacked: Served) -> None:
    code, details = ask(attacked, grpc_request(1, 0) + b"\x1a\x80\x80\xe0\x01" + b"x" * 3670016)
    assert code == "INVALID_ARGUMENT"
    assert "the id has 3670016 characters" in details
    status, text = post(attacked, message(json.dumps([7] * 3072))[:-1] + b',"id":"' + b"x" * 2000 + b'"}')
    assert status == 400
    assert "the id has 2000 characters" in text


def test_large_messages_at_once_are_limited_together(attacked: Served) -> None:
    request = inference_pb2.ModelInferRequest.FromString(grpc_request(64, 0))
    request.parameters["unknown"].string_param = "x" * 3_900_000
    large = request.SerializeToString()
    with Vitals(attacked), ThreadPoolExecutor(24) as pool:
        codes = {code for code, _ in pool.map(lambda _: ask(attacked, large), range(72))}
    assert codes <= {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}


PACKERS = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("coding", PACKERS)
def test_a_body_that_unpacks_to_more_than_a_body_may_have_is_refused_and_costs_little(
    attacked: Served, coding: str
) -> None:
    bomb, small = PACKERS[coding](b" " * 256 * 2**20), PACKERS[coding](b" " * 2**20)
    with Vitals(attacked), ThreadPoolExecutor(16) as pool:
        for status, text in pool.map(
            lambda path: post(attacked, bomb, path, **{"content-encoding": coding}), [INFER] * 32
        ):
            assert (status, "when unpacked" in text) == (413, True)
        for spoilt in (small[:-4], small + small, small + b"x", b"\0" * 100):
            for path in (INFER, "/v2/repository/index"):
                status, text = post(attacked, spoilt, path, **{"content-encoding": coding})
                assert (status, "the message is not" in text) == (400, True)
