"""Numbers that no parameter can have are the client's error, in both protocols."""

import http.client
import json
import math

import grpc
import numpy as np
import pytest

from served import Served
from slimsched.core.config import ConfigError
from slimsched.serving.api.proto import inference_pb2
from slimsched.serving.gateway.goal import parse_goal

PARAMETERS = ["deadline_ms", "timeout", "priority", "min_accuracy", "max_energy_mj", "width", "plan"]
TOO_LARGE = ["1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000, "1e400", "1e308", "-1e308"]


def infer(served: Served, parameters: str, **headers: str) -> tuple[int, str]:
    images = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8", "data": [7] * 3072}
    body = f'{{"inputs": [{json.dumps(images)}], "parameters": {parameters}}}'
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("POST", "/v2/models/slimresnet/infer", body=body, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("number", [*TOO_LARGE, '"nan"', '"inf"', '"1e999"', "true", "null", "[]", "{}"])
def test_a_number_out_of_range_is_refused(attacked: Served, name: str, number: str) -> None:
    status, text = infer(attacked, f'{{"{name}": {number}}}')
    assert status == 400, text


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, True, "nan", "9" * 5000])
def test_so_is_one_over_grpc(attacked: Served, name: str, number: float | bool | str) -> None:
    request = inference_pb2.ModelInferRequest(model_name="slimresnet")
    request.inputs.add(name="images", datatype="UINT8", shape=[1, 3, 32, 32])
    request.raw_input_contents.append(np.zeros(3072, np.uint8).tobytes())
    kind = {bool: "bool_param", float: "double_param", str: "string_param"}[type(number)]
    setattr(request.parameters[name], kind, number)
    with grpc.insecure_channel(attacked.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert infer.future(request.SerializeToString(), timeout=60).code().name == "INVALID_ARGUMENT"


@pytest.mark.parametrize("length", ["9" * 5000, "1" + "0" * 400, "9" * 16, "-1", "1e3", "²"])
def test_a_length_that_is_no_length_is_refused(attacked: Served, length: str) -> None:
    status, text = infer(
        attacked, "{}", **{"inference-header-content-length": length.encode().decode("latin-1")}
    )
    assert status == 400, text


@pytest.mark.parametrize(
    "shape", ["[1e400]", "[1" + "0" * 400 + "]", "[1" + "0" * 5000 + ",3,32,32]", "[-5,3,32,32]"]
)
def test_a_shape_out_of_range_is_refused(attacked: Served, shape: str) -> None:
    connection = http.client.HTTPConnection(attacked.http, timeout=60)
    body = f'{{"inputs": [{{"name": "images", "datatype": "UINT8", "shape": {shape}, "data": [1]}}]}}'
    connection.request("POST", "/v2/models/slimresnet/infer", body=body)
    assert connection.getresponse().status == 400


@pytest.mark.parametrize(
    "clause", ["p99<=0ms", "p99<=0s", "p99<=0.0ms", "p99<=" + "9" * 400 + "ms", "p99<=0." + "0" * 400 + "1s"]
)
def test_a_limit_that_cannot_be_met_is_not_dropped_silently(attacked: Served, clause: str) -> None:
    with pytest.raises(ConfigError, match="cannot be met"):
        parse_goal(f"accuracy>=70, {clause}, min energy")
    connection = http.client.HTTPConnection(attacked.http, timeout=60)
    connection.request("PUT", "/v2/goal", body=json.dumps({"goal": f"accuracy>=70, {clause}"}))
    assert connection.getresponse().status == 400
