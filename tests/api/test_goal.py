"""The goal of a running server is shown, changed and followed."""

import http.client
import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from served import Served
from slimsched.api.client import Client


def ask(served: Served, method: str, body: object = None, token: str = "") -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"authorization": f"Bearer {token}"}
    connection.request(method, "/v2/goal", body=None if body is None else text, headers=headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_a_goal_is_changed_while_requests_are_served(
    own_server: Callable[..., Served], images: NDArray[np.uint8]
) -> None:
    served = own_server("--goal", "accuracy>=70, min energy", "--token", "t")
    assert ask(served, "GET")[0] == 401
    assert ask(served, "PUT", {"goal": "max accuracy"})[0] == 401
    assert ask(served, "GET", token="t") == (
        200,
        {"goal": "accuracy>=70, min energy", "objective": "energy", "min_accuracy": 0.7, "p99_ms": None},
    )
    with Client(f"http://{served.http}", token="t") as client:
        client.classify(images)
        status, shown = ask(served, "PUT", {"goal": "accuracy>=75, p99<=60ms, min energy"}, "t")
        assert (status, shown["p99_ms"]) == (200, 60.0)
        assert len(client.classify(images).labels) == len(images)
    for wrong in ({"goal": "be quick"}, {"goal": 3}, {"aim": "max accuracy"}, "{", {"goal": "accuracy>=99"}):
        assert ask(served, "PUT", wrong, "t")[0] == 400
    assert ask(served, "DELETE", token="t")[0] == 405
    assert ask(served, "GET", token="t")[1]["goal"] == "accuracy>=75, p99<=60ms, min energy"
    assert served.stop() == 0


def test_a_router_without_goals_says_so(own_server: Callable[..., Served]) -> None:
    served = own_server("--router", "jsq")
    assert ask(served, "GET")[1]["goal"] is None
    status, said = ask(served, "PUT", {"goal": "max accuracy"})
    assert status == 400
    assert "--goal" in str(said["error"])
