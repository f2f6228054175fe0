"""`slim load`: sends in open loop and counts latency from the due time."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from command_line import CliRunner
from served import Served
from slimsched.core.config import ConfigError, SlimError
from slimsched.serving.api.client.load import (
    LoadGenerator,
    Reply,
    SentRequest,
    Target,
    due_times,
    load_of,
    report,
)

Images = NDArray[np.uint8]


def send(
    served: Served, images: Images, due_s: list[float], count: int = 1, **terms: float | str
) -> list[SentRequest]:
    generator = LoadGenerator(f"http://{served.http}", {"images": images}, Target().prefix(terms))
    numbers = np.arange(len(due_s) * count).reshape(-1, count) % len(images)
    return asyncio.run(generator.run(np.array(due_s), numbers))


def test_every_request_leaves_when_due_and_is_answered(served: Served, images: Images) -> None:
    sent = send(served, images, [0.01 * n for n in range(40)], count=2, plan="0.25")
    labels = np.zeros(len(images), dtype=np.int64)
    figures = report(sent, labels, seconds=0.4, deadline_s=60.0)
    assert figures.outcomes == {"200": 40}
    assert figures.examples == 80
    assert figures.goodput_per_s == figures.answered_per_s == 200
    assert figures.choices == {"0.25": 1.0}
    assert figures.accuracy is not None
    assert figures.predicted_accuracy is not None
    assert figures.energy_mj_per_example is not None
    assert all(one.due_s <= one.sent_s <= one.done_s for one in sent)


def test_refusals_are_counted_by_status_and_reason(served: Served, images: Images) -> None:
    figures = report(send(served, images, [0.0] * 5, plan="0.6"), None, seconds=1.0, deadline_s=1.0)
    assert figures.outcomes == {"400": 5}
    assert figures.accuracy is None
    assert sum(figures.refusals.values()) == 5
    late = report(send(served, images, [0.0] * 5, deadline_ms=0.01), None, seconds=1.0, deadline_s=1e-5)
    assert late.outcomes == {"504": 5}


def test_waiting_is_charged_from_the_due_time() -> None:
    """A request that was due at 1 s, left at 3 s and was answered at 3.5 s took 2.5 s."""
    generator = LoadGenerator(
        "http://127.0.0.1:9", {"images": np.zeros((1, 3, 32, 32), np.uint8)}, Target().prefix({})
    )
    one = SentRequest(1.0, np.array([0]), generator)
    one.sent_s, one.done_s = 3.0, 3.5
    body = b'{"outputs": [{"name": "classes", "datatype": "INT64", "shape": [1], "data": [7]}]}'
    one.reply = Reply(200, body, None)
    figures = report([one], np.array([7]), seconds=4.0, deadline_s=2.0)
    assert figures.latency.max_s == 2.5
    assert figures.latency_from_send.max_s == 0.5
    assert figures.dispatch_error.max_s == 2.0
    assert figures.goodput_per_s == 0.0
    assert figures.accuracy == 1.0


def test_the_same_seed_gives_the_same_load() -> None:
    first, second = (due_times(load_of("bursty", 50.0, 4.0), 3, 100, 2) for _ in range(2))
    assert (first[0] == second[0]).all()
    assert (first[1] == second[1]).all()
    assert first[1].shape == (len(first[0]), 2)
    with pytest.raises(ConfigError, match="no request"):
        due_times(load_of("poisson", 0.001, 0.001), 0, 100, 1)


def test_no_more_connections_are_opened_than_allowed(served: Served, images: Images) -> None:
    before = opened(served)
    generator = LoadGenerator(
        f"http://{served.http}", {"images": images}, Target().prefix({"plan": "0.25"}), connections=3
    )

    async def most_open() -> int:
        run = asyncio.create_task(generator.run(np.zeros(40), np.zeros((40, 1), np.int64)))
        most = 0
        while not run.done():
            most = max(most, opened(served) - before)
            await asyncio.sleep(0.005)
        assert {one.status for one in await run} == {200}
        return most

    assert asyncio.run(most_open()) == 3


def opened(served: Served) -> int:
    """Count the files and sockets that the server has open."""
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))


def test_a_missing_server_is_reported(images: Images) -> None:
    with pytest.raises(SlimError, match="slim serve"):
        asyncio.run(
            LoadGenerator("http://127.0.0.1:9", {"images": images}, Target().prefix({})).run(
                np.array([0.0]), np.array([[0]])
            )
        )


def test_the_command_reports_json_and_draws(served: Served, tmp_path: Path) -> None:
    picture = tmp_path / "load.png"
    options = ["--url", f"http://{served.http}", "--rate", "30", "--seconds", "1", "--plan", "0.25"]
    plain = {"SLIM_DATA": None}
    result = CliRunner().invoke(["load", *options, "--json", "--plot", str(picture)], env=plain)
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["outcomes"] == {"200": row["requests"]}
    assert picture.stat().st_size > 10_000
    shown = CliRunner().invoke(["load", *options, "--arrivals", "step"], env=plain)
    assert "dispatch error" in shown.output
