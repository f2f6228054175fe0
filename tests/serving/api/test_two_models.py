"""Several models behind one server: each request is answered by its own model, and none starves."""

import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http

from served import CONFIG, Served
from stamped import stamped_folder

SECONDS = 8.0
ROWS = 4


def scenario(tmp_path: Path) -> Path:
    """Two models on two CPU servers, each with a goal of its own."""
    for name, stamp in (("cats", 3.0), ("dogs", 5.0)):
        stamped_folder(tmp_path / name, stamp=stamp)
    goals = {"cats": "accuracy>=85, min energy", "dogs": "accuracy>=65, min energy"}
    sections = [f'[[model]]\nsource = "{name}"\ngoal = "{goal}"\n' for name, goal in goals.items()]
    path = tmp_path / "two-models.toml"
    path.write_text(CONFIG + "".join(sections))
    return path


def put_goal(served: Served, body: object) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("PUT", "/v2/goal", body=json.dumps(body))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def ask(client: Any, model: str, value: float) -> tuple[list[list[float]], dict[str, Any]]:
    values = np.full((ROWS, 4), value, dtype=np.float32)
    tensor = triton_http.InferInput("x", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    result = client.infer(model, [tensor])
    return result.as_numpy("y").tolist(), result.get_response()["parameters"]


@pytest.mark.slow
def test_mixed_traffic_is_answered_by_each_requests_own_model_within_its_goal(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    served = own_server("--config", str(scenario(tmp_path)))
    stamps = {"cats": 3.0, "dogs": 5.0}
    until_s = monotonic() + SECONDS

    def traffic(model: str) -> list[float]:
        client = triton_http.InferenceServerClient(served.http)
        accuracies: list[float] = []
        while monotonic() < until_s:
            number = len(accuracies)
            rows, receipt = ask(client, model, float(number))
            assert rows == [[stamps[model], stamps[model], 4.0 * number]] * ROWS
            accuracies.append(receipt["predicted_accuracy"])
        return accuracies

    with ThreadPoolExecutor(4) as pool:
        running = [(model, pool.submit(traffic, model)) for model in ("cats", "dogs", "cats", "dogs")]
        ended = {model: future.result(timeout=120) for model, future in running}
    means = {model: float(np.mean(accuracies)) for model, accuracies in ended.items()}
    assert means["cats"] >= 0.83, "floor 85, in a short run"
    assert 0.63 <= means["dogs"] < means["cats"], "floor 65, in a short run"
    counts = sorted(len(accuracies) for accuracies in ended.values())
    assert counts[0] > counts[1] / 2, "neither model starves"

    status, shown = put_goal(served, {"goal": "max accuracy", "model": "dogs"})
    assert status == 200
    assert shown["models"]["dogs"]["goal"] == "max accuracy"
    assert shown["models"]["cats"]["goal"] == "accuracy>=85, min energy"
    assert put_goal(served, {"goal": "max accuracy", "model": "birds"})[0] == 404
    assert put_goal(served, {"goal": "accuracy>=95", "model": "dogs"})[0] == 400
    client = triton_http.InferenceServerClient(served.http)
    assert all(client.is_model_ready(name) for name in stamps)
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()
