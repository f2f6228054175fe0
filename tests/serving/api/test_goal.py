"""The goal of a running server is shown, changed and followed."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from served import Served
from slimsched.core.config import ConfigError
from slimsched.serving.api.client.client import Client
from slimsched.serving.api.pages import GoalState


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
    nothing = dict.fromkeys(("figure", "low", "high"))
    no_answer = {"limit": "accuracy>=70", "word": "undecided", **nothing, "answers": 0, "missing": 16}
    no_answer["says"] = "no answer yet"
    status, shown = ask(served, "GET", token="t")
    assert shown.pop("note") == "min energy minimises modelled energy: energy is modelled from public figures"
    assert (status, shown) == (
        200,
        {
            "goal": "accuracy>=70, min energy",
            "objective": "energy",
            "min_accuracy": 0.7,
            **dict.fromkeys(("p99_ms", "p95_ms", "mean_ms", "energy_mj", "power_w")),
            "verdict": "undecided",
            "limits": [no_answer],
            "run_limits": [no_answer],
        },
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


def test_a_restart_keeps_the_goal_that_was_set(own_server: Callable[..., Served], tmp_path: Path) -> None:
    options = ("--state", str(tmp_path / "state" / "goal.json"))
    first = own_server("--goal", "accuracy>=70, min energy", *options)
    assert ask(first, "GET")[1]["goal"] == "accuracy>=70, min energy"
    assert ask(first, "PUT", {"goal": "accuracy>=77, min latency"})[0] == 200
    first.process.kill()
    first.process.wait()
    second = own_server("--goal", "accuracy>=70, min energy", *options)
    assert ask(second, "GET")[1]["goal"] == "accuracy>=77, min latency"
    assert second.stop() == 0
    other = own_server("--goal", "max accuracy", *options)
    assert ask(other, "GET")[1]["goal"] == "max accuracy", "a new command line wins"
    assert other.stop() == 0


def test_a_file_that_holds_no_goal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "goal.json").write_text("[]")
    with pytest.raises(ConfigError, match="name another with --state"):
        GoalState(tmp_path / "goal.json", "goal").read()


def test_a_router_without_goals_says_so(own_server: Callable[..., Served]) -> None:
    served = own_server("--router", "jsq")
    assert ask(served, "GET")[1]["goal"] is None
    status, said = ask(served, "PUT", {"goal": "max accuracy"})
    assert status == 400
    assert "--goal" in str(said["error"])
