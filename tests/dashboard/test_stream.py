"""The stream of frames, read with a plain HTTP client."""

import asyncio
import http.client
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from served import Served
from slimsched.dashboard.live import Dashboard
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario


def open_stream(address: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, "/dashboard/frames", headers=headers)
    return connection.getresponse()


def message(response: http.client.HTTPResponse) -> Any:
    """Read the next message of a stream."""
    while not (line := response.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return json.loads(line[6:])


def test_a_stream_starts_with_the_past_and_continues(served: Served) -> None:
    response = open_stream(served.http)
    assert response.getheader("content-type") == "text/event-stream"
    history = message(response)
    assert isinstance(history, list)
    first, second = message(response), message(response)
    assert first["at_s"] < second["at_s"]
    assert [server["name"] for server in second["servers"]] == ["one", "two"]
    assert second["phase"] == "ready"
    response.close()


def test_several_readers_can_watch_at_once(served: Served) -> None:
    streams = [open_stream(served.http) for _ in range(20)]
    for stream in streams:
        message(stream)
        assert message(stream)["at_s"] > 0
        stream.close()


def test_a_head_request_gets_only_the_headers(served: Served) -> None:
    response = open_stream(served.http, "HEAD")
    assert response.status == 200
    assert response.read() == b""


def test_the_page_is_open_and_the_frames_ask_for_the_token(own_server: Callable[..., Served]) -> None:
    address = own_server("--token", "s3cret").http
    assert open_stream(address).status == 401
    assert open_stream(address, Authorization="Bearer s3cret").status == 200
    connection = http.client.HTTPConnection(address, timeout=30)
    for path in ("/", "/dashboard.css", "/dashboard.js"):
        connection.request("GET", path)
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
        assert "default-src 'none'" in response.getheader("content-security-policy", "")


def test_readers_that_do_not_read_do_not_keep_the_server_from_stopping(
    own_server: Callable[..., Served],
) -> None:
    running = own_server()
    host, port = running.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as idle, open_stream(running.http) as reader:
        idle.sendall(b"GET /dashboard/frames HTTP/1.1\r\nhost: x\r\n\r\n")
        message(reader)
        assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def test_a_failed_frame_is_reported_and_the_stream_continues(caplog: pytest.LogCaptureFixture) -> None:
    broken = [True]

    def phase() -> str:
        if broken[0]:
            raise ZeroDivisionError("no phase today")
        return "ready"

    async def watch() -> tuple[list[bytes], bytes]:
        scenario = load_scenario("laptop")
        gateway = Gateway(scenario.cluster, make_router("sed", scenario.cluster, 0), scenario.gateway)
        dashboard = Dashboard(gateway, "sed", now=lambda: 1.0, phase=phase, power_sources=lambda: "")
        looking = asyncio.create_task(dashboard.run())
        stream = dashboard.pages["/dashboard/frames"]().stream
        assert stream is not None
        assert await anext(stream) == b"event: history\ndata: []\n\n"
        told = [await anext(stream), await anext(stream)]
        broken[0] = False
        healed = await anext(stream)
        looking.cancel()
        return told, healed

    with caplog.at_level(logging.ERROR, "slim.dashboard"):
        told, healed = asyncio.run(watch())
    assert told == 2 * [b'event: trouble\ndata: "ZeroDivisionError: no phase today"\n\n']
    assert len(caplog.records) == 1, "a trouble is logged when it begins, not four times a second"
    assert json.loads(healed[6:])["phase"] == "ready"
