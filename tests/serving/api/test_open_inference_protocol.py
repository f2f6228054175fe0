"""Unchanged third-party clients against the real server."""

import http.client
import json
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from hosting import cpu_executor, run_legs
from served import Served, serve, settled

Images = NDArray[np.uint8]
PROTOCOLS = {"http": triton_http, "grpc": triton_grpc}


@pytest.fixture(scope="module", params=["0", "2"], ids=["gateway", "fronts"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway that reads requests itself, or front processes that do it for it."""
    running = serve(tmp_path_factory.mktemp("served"), "--fronts", request.param)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, served: Served) -> tuple[Any, Any]:
    module = PROTOCOLS[request.param]
    address = served.http if request.param == "http" else served.grpc
    return module, module.InferenceServerClient(address)


def parameters_of(result: Any) -> dict[str, Any]:
    response = result.get_response()
    if isinstance(response, dict):
        return dict(response["parameters"])
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
    }


def infer(triton: tuple[Any, Any], values: NDArray[Any], datatype: str = "UINT8", **options: Any) -> Any:
    module, client = triton
    tensor = module.InferInput("images", list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return client.infer("slimresnet", [tensor], **options)


def test_health_and_metadata(triton: tuple[Any, Any]) -> None:
    module, client = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("slimresnet")
    as_json = {} if module is triton_http else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "slim-scheduler"
    model = client.get_model_metadata("slimresnet", **as_json)
    assert [one["name"] for one in model["outputs"]] == ["classes", "logits", "labels"]


def test_answers_equal_the_models_at_the_choices_of_the_receipt(
    triton: tuple[Any, Any], images: Images
) -> None:
    result = infer(triton, images)
    receipt = parameters_of(result)
    executor, inputs = cpu_executor(), torch.from_numpy(images.copy())
    choices = receipt["choices"].split(";")
    assert len(choices) == len(images)
    for row, names in enumerate(choices):
        given = result.as_numpy("logits")[row]
        widths = tuple(map(float, names.split(",")))
        logits = run_legs(executor, widths, inputs[row : row + 1])[0].numpy()
        assert np.allclose(given, logits, atol=0.2)  # half precision, and batches of other sizes
        assert result.as_numpy("classes")[row] == given.argmax()
    assert 0.7 < receipt["predicted_accuracy"] < 0.85
    assert receipt["compute_ms"] > 0
    assert receipt["energy_mj"] > 0
    assert "modelled" in receipt["energy_source"] or "RAPL" in receipt["energy_source"]
    assert receipt["reason"]


def test_json_and_binary_tensors_and_floats_agree(served: Served, images: Images) -> None:
    client = triton_http.InferenceServerClient(served.http)
    answers = []
    for values, datatype, binary in (
        (images, "UINT8", True),
        (images, "UINT8", False),
        (images.astype(np.float32) / 255, "FP32", True),
        (images.astype(np.float32) / 255, "FP32", False),
    ):
        tensor = triton_http.InferInput("images", list(values.shape), datatype)
        tensor.set_data_from_numpy(values, binary_data=binary)
        outputs = [triton_http.InferRequestedOutput(n, binary_data=binary) for n in ("classes", "labels")]
        result = client.infer("slimresnet", [tensor], outputs=outputs, parameters={"plan": "0.5"})
        labels = [word.decode() if isinstance(word, bytes) else word for word in result.as_numpy("labels")]
        answers.append((result.as_numpy("classes").tolist(), labels))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(
    ("parameters", "choices"),
    [
        ({"width": 0.25}, "0.25,0.25,0.25,0.25"),
        ({"width": 1}, "1.0,1.0,1.0,1.0"),
        ({"plan": "0.25"}, "0.25,0.25,0.25,0.25"),
        ({"plan": "0.25,0.5,0.75,1.0"}, "0.25,0.5,0.75,1.0"),
    ],
)
def test_a_requested_plan_is_served(
    triton: tuple[Any, Any], images: Images, parameters: dict[str, Any], choices: str
) -> None:
    receipt = parameters_of(infer(triton, images[:2], parameters=parameters))
    assert receipt["choices"] == f"{choices};{choices}"


def test_an_accuracy_floor_is_kept(triton: tuple[Any, Any], images: Images) -> None:
    receipt = parameters_of(infer(triton, images[:1], parameters={"min_accuracy": 0.81}))
    assert receipt["predicted_accuracy"] >= 0.81


@pytest.mark.parametrize(
    ("shape", "datatype", "parameters", "says"),
    [
        ((1, 3, 32, 31), "UINT8", {}, "shape [1, 3, 32, 31] does not fit; send [n, 3, 32, 32]"),
        ((65, 3, 32, 32), "UINT8", {}, "65 examples in one request; send 1 to 64"),
        ((1, 3, 32, 32), "INT32", {}, "datatype 'INT32' is not accepted; send UINT8 or FP32"),
        (
            (1, 3, 32, 32),
            "UINT8",
            {"width": 0.6},
            "'0.6' is not available: model 'slimresnet' runs at 0.25, 0.5, 0.75, 1.0",
        ),
        ((1, 3, 32, 32), "UINT8", {"plan": "0.5,0.5"}, "'0.5,0.5' is not a plan of model 'slimresnet'"),
        ((1, 3, 32, 32), "UINT8", {"min_accuracy": 0.99}, "the best plan reaches"),
        ((1, 3, 32, 32), "UINT8", {"deadline_ms": "soon"}, "parameter deadline_ms is 'soon'; give a number"),
        ((1, 3, 32, 32), "UINT8", {"deadline_ms": -5}, "deadline_ms is -5; give a number above 0"),
    ],
)
def test_a_wrong_request_is_told_what_to_send(
    triton: tuple[Any, Any], shape: tuple[int, ...], datatype: str, parameters: dict[str, Any], says: str
) -> None:
    values = np.zeros(shape, {"UINT8": np.uint8, "INT32": np.int32}[datatype])
    with pytest.raises(InferenceServerException) as raised:
        infer(triton, values, datatype, parameters=parameters)
    assert says in str(raised.value)
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_unknown_models_and_outputs_are_refused(triton: tuple[Any, Any], images: Images) -> None:
    module, client = triton
    tensor = module.InferInput("images", [1, 3, 32, 32], "UINT8")
    tensor.set_data_from_numpy(images[:1])
    with pytest.raises(InferenceServerException, match="unknown model 'vgg'; this server has 'slimresnet'"):
        client.infer("vgg", [tensor])
    with pytest.raises(InferenceServerException, match="unknown output 'boxes'; this model has classes"):
        client.infer("slimresnet", [tensor], outputs=[module.InferRequestedOutput("boxes")])


def test_a_deadline_that_cannot_be_met_is_a_timeout(triton: tuple[Any, Any], images: Images) -> None:
    with pytest.raises(InferenceServerException) as raised:
        infer(triton, np.repeat(images, 8, axis=0), parameters={"deadline_ms": 1})
    assert raised.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")


def plain(triton: tuple[Any, Any], name: str, *given: str) -> Any:
    """What a method of a client says, as values of Python; gRPC writes large numbers as text."""
    module, client = triton
    return getattr(client, name)(*given, **({} if module is triton_http else {"as_json": True}))


@pytest.mark.parametrize("version", ["", "1"])
def test_the_configuration_is_that_of_the_metadata(triton: tuple[Any, Any], version: str) -> None:
    config = plain(triton, "get_model_config", "slimresnet", version)
    config = config.get("config", config)
    assert config["name"] == "slimresnet"
    assert config["max_batch_size"] == 64
    assert [one["data_type"] for one in config["input"]] == ["TYPE_UINT8"]
    assert [int(size) for size in config["input"][0]["dims"]] == [3, 32, 32]
    assert [one["name"] for one in config["output"]] == ["classes", "logits", "labels"]
    metadata = plain(triton, "get_model_metadata", "slimresnet", version)
    if triton[0] is triton_http:  # the schema of Triton's own client has no properties
        assert metadata["properties"]["plans"] == config["parameters"]["plans"]["string_value"] == "256"
    with pytest.raises(InferenceServerException, match="unknown version '2'"):
        triton[1].get_model_config("slimresnet", "2")


def test_statistics_are_those_of_the_metrics_page(
    triton: tuple[Any, Any], served: Served, images: Images
) -> None:
    def counted() -> list[float]:
        [stats] = plain(triton, "get_inference_statistics", "slimresnet", "1")["model_stats"]
        of = stats["inference_stats"]
        figures = [of[name].get("count", 0) for name in ("success", "fail", "queue", "compute_output")]
        figures += [stats.get("inference_count", 0), stats.get("execution_count", 0)]
        figures += [of[name].get("ns", 0) for name in ("queue", "compute_infer", "success")]
        return list(map(float, figures))

    names = ["queue", "compute", "network"]

    def seconds() -> list[float]:
        return [served.metric(f"slim_image_{name}_seconds_sum") for name in names]

    before, before_s = settled(counted), seconds()
    for _ in range(5):
        infer(triton, images[:1])
    with pytest.raises(InferenceServerException):
        infer(triton, images[:1], parameters={"deadline_ms": 1e-3})
    grew = [after - one for after, one in zip(settled(counted), before, strict=True)]
    grew_s = [after - one for after, one in zip(seconds(), before_s, strict=True)]
    assert grew[:5] == [5, 1, 5, 5, 5]
    assert 1 <= grew[5] <= 20  # batches, each of one segment or several
    assert np.allclose(np.array(grew[6:]) / 1e9, [grew_s[0], grew_s[1], sum(grew_s)], rtol=1e-6)
    everything = plain(triton, "get_inference_statistics")["model_stats"]
    assert [one["name"] for one in everything] == ["slimresnet"]


def test_traces_and_logs_have_no_settings(triton: tuple[Any, Any]) -> None:
    _, client = triton
    for ask in (
        client.get_trace_settings,
        lambda: client.get_trace_settings("slimresnet"),
        client.get_log_settings,
    ):
        with pytest.raises(InferenceServerException, match="settings to show or change; start it with --"):
            ask()
    for change in (client.update_trace_settings, client.update_log_settings):
        with pytest.raises(InferenceServerException, match="settings to show or change"):
            change(settings={})


@pytest.mark.parametrize("binary", [True, False])
def test_classification_gives_the_largest_values_with_their_labels(
    triton: tuple[Any, Any], images: Images, binary: bool
) -> None:
    module, _ = triton
    how = {"binary_data": binary} if module is triton_http else {}
    best = module.InferRequestedOutput("logits", class_count=3, **how)
    words = infer(triton, images[:2], outputs=[best], parameters={"plan": "0.5"}).as_numpy("logits")
    whole = infer(
        triton,
        images[:2],
        parameters={"plan": "0.5"},
        outputs=[module.InferRequestedOutput(name, **how) for name in ("logits", "labels")],
    )
    assert words.shape == (2, 3)
    for row, scores, label in zip(words, whole.as_numpy("logits"), whole.as_numpy("labels"), strict=True):
        parts = [(word.decode() if isinstance(word, bytes) else word).split(":") for word in row]
        assert [int(place) for _, place, _ in parts] == np.argsort(-scores)[:3].tolist()
        assert parts[0][2] == (label.decode() if isinstance(label, bytes) else label)
    with pytest.raises(
        InferenceServerException, match="'classes' has no scores to classify by; ask for logits"
    ):
        infer(triton, images[:1], outputs=[module.InferRequestedOutput("classes", class_count=2)])


def test_probes_learn_the_health_of_the_server_and_of_each_model(served: Served) -> None:
    serving = HealthCheckResponse.SERVING
    with grpc.insecure_channel(served.grpc) as channel:
        health = HealthStub(channel)
        for name in ("", "inference.GRPCInferenceService", "slimresnet"):
            assert health.Check(HealthCheckRequest(service=name)).status == serving
            watched = health.Watch(HealthCheckRequest(service=name), timeout=30)
            assert next(watched).status == serving
            watched.cancel()
        with pytest.raises(grpc.RpcError, match="unknown model 'vgg'"):
            health.Check(HealthCheckRequest(service="vgg"))
        watched = health.Watch(HealthCheckRequest(service="vgg"), timeout=30)
        assert next(watched).status == HealthCheckResponse.SERVICE_UNKNOWN
        watched.cancel()


def test_reflection_describes_every_service(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        methods = {
            name: {method.name for method in pool.FindServiceByName(name).methods}
            for name in database.get_services()
        }
    assert {"Check", "Watch"} == methods["grpc.health.v1.Health"]
    assert {"ModelInfer", "ModelConfig", "ModelStatistics"} <= methods["inference.GRPCInferenceService"]
    assert "grpc.reflection.v1alpha.ServerReflection" in methods


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_requests_and_answers_may_be_compressed(served: Served, images: Images, coding: str) -> None:
    client = triton_http.InferenceServerClient(served.http)
    packed = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
    for binary in (True, False):
        tensor = triton_http.InferInput("images", [8, 3, 32, 32], "UINT8")
        tensor.set_data_from_numpy(images, binary_data=binary)
        outputs = [
            triton_http.InferRequestedOutput("classes", binary),
            triton_http.InferRequestedOutput("logits", binary),
        ]
        asked = {
            "model_name": "slimresnet",
            "inputs": [tensor],
            "outputs": outputs,
            "parameters": {"plan": "0.5"},
        }
        assert np.allclose(
            client.infer(**asked, **packed).as_numpy("logits"),
            client.infer(**asked).as_numpy("logits"),
            atol=0.2,
        )
    for accepted, sent in (
        (coding, coding),
        (f"br, {coding};q=0.5", coding),
        (f"{coding};q=0", None),
        ("", None),
    ):
        connection = http.client.HTTPConnection(served.http, timeout=30)
        connection.request("GET", "/openapi.json", headers={"accept-encoding": accepted})
        response = connection.getresponse()
        raw = response.read()
        assert response.getheader("content-encoding") == sent
        assert json.loads(zlib.decompress(raw, zlib.MAX_WBITS | 32) if sent else raw)["openapi"] == "3.1.0"
        connection.close()
    channel = triton_grpc.InferenceServerClient(served.grpc)
    tensor = triton_grpc.InferInput("images", [8, 3, 32, 32], "UINT8")
    tensor.set_data_from_numpy(images)
    assert channel.infer("slimresnet", [tensor], compression_algorithm=coding).as_numpy("classes").shape == (
        8,
    )
